"""The shipped specs are the published models, say where their times come from, and are what the zoo makes today."""

from dataclasses import replace
from pathlib import Path

import pytest

from autosync.specs.model import ModelSpec, Variable
from autosync.specs.model_file import format_model, load_model, shipped_models

ZOO = Path(__file__).parents[2] / "examples" / "zoo"

# Published: torchvision's figures; the checkpoints of GPT-2 and of BERT (encoder and pooler, to which the two heads of
# pre-training are added); the others from the layer sizes of their papers. InceptionV3 counts its auxiliary classifier.
NUM_PARAMETERS = {
    "vgg16": 138_357_544,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "densenet121": 7_978_856,
    "inception_v3": 27_161_264,
    "mobilenet_v2": 3_504_872,
    "bert_large": 335_141_888 + 1_084_220,
    "bert_small": 28_763_648 + 295_228,
    "gpt2_small": 124_439_808,
    "ncf": 31_832_577,
    "dlrm": 24_205_825,
    "transformer": 63_045_632,
    "resnet20": 269_722,
    "squeezenet": 1_235_496,
    "bert_tiny": 4_385_920 + 47_548,
    "gpt_mini": 2_694_144,
    "vit_mini": 1_821_220,
    "lstm_ptb": 4_651_600,
    "acoustic_mlp": 2_884_700,
    "moe": 2_124_562,
    "ncf_small": 1_912_513,
}
EMBEDDINGS = {
    "ncf": 4,
    "ncf_small": 4,
    "dlrm": 26,
    "bert_large": 2,
    "bert_small": 2,
    "bert_tiny": 2,
    "gpt2_small": 1,
    "gpt_mini": 1,
    "lstm_ptb": 1,
}
SPARSE = ("ncf", "ncf_small", "dlrm", "lstm_ptb")
TIED = ("bert_large", "bert_small", "bert_tiny", "gpt2_small", "gpt_mini", "transformer")
# No linear layer at all.
CONVOLUTIONS_ALONE = ("squeezenet",)
# Their layers compute over the batch.
NORMALISED = ("resnet18", "resnet20", "resnet50", "resnet101", "densenet121", "inception_v3", "mobilenet_v2")
# Rows, convolutions with normalisation, an encoder, a decoder, both with tied weights, patches, and experts.
SMALL = ("ncf_small", "resnet20", "bert_tiny", "gpt_mini", "vit_mini", "acoustic_mlp", "moe")
# Those whose step takes little even on a slow CPU.
QUICK = ("ncf", "dlrm", "ncf_small", "acoustic_mlp")


@pytest.fixture(params=sorted(NUM_PARAMETERS))
def model(request: pytest.FixtureRequest) -> ModelSpec:
    return load_model(request.param)


def test_what_ships_is_held_by_this_test() -> None:
    assert shipped_models().keys() == NUM_PARAMETERS.keys()


def test_parameters_are_as_many_as_published(model: ModelSpec) -> None:
    assert model.num_parameters == NUM_PARAMETERS[model.name]
    assert model.untrained == ()


def test_kinds_are_those_of_the_model(model: ModelSpec) -> None:
    embeddings = [v for v in model.variables if v.kind == "embedding"]
    assert len(embeddings) == EMBEDDINGS.get(model.name, 0)
    # Few ask torch for sparse gradients.
    assert all(v.sparse == (model.name in SPARSE) for v in embeddings)
    # A word embedding that is the output layer as well has a dense gradient, complete only at the end.
    if model.name in TIED:
        largest = max(model.variables, key=lambda v: v.num_elements)
        assert largest.kind == "dense"
        assert largest.ready >= len(model.variables) - 3
        assert largest.use <= 1
    assert any(v.kind == "linear" for v in model.variables) != (model.name in CONVOLUTIONS_ALONE)


def test_every_spec_says_where_its_times_come_from(model: ModelSpec) -> None:
    assert model.timeline.source == "computed"
    assert model.timeline.device == "NVIDIA T4"
    assert "computed, not measured" in model.timeline.note
    assert 1e-4 < model.timeline.seconds < 10


def test_the_timeline_tells_of_every_variable(model: ModelSpec) -> None:
    names = {variable.name for variable in model.variables}
    for segments in (model.timeline.forward, model.timeline.backward, model.timeline.optimizer):
        assert {name for segment in segments for name in segment.variables} == names


def test_every_spec_says_whether_it_may_be_divided(model: ModelSpec) -> None:
    timeline = model.timeline
    assert timeline.cuts, timeline.uncut
    assert ("BatchNorm" in timeline.mixes) == (model.name in NORMALISED)
    # Stages compute microbatches, whose times are told only where stages may be searched.
    assert bool(timeline.sizes) == (not timeline.mixes)
    seconds = [size.seconds for size in timeline.sizes]
    assert seconds == sorted(seconds)


def test_the_files_are_as_autosync_writes_them(model: ModelSpec) -> None:
    assert shipped_models()[model.name].read_text(encoding="utf-8") == format_model(model)


def bare(variable: Variable) -> Variable:
    """Without the counted rows, which depend on how many batches were drawn."""
    if variable.kind != "embedding":
        return variable
    return replace(variable, touched_rows=0.0, max_touched_rows=0)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SMALL else pytest.mark.slow) for name in sorted(NUM_PARAMETERS)],
)
def test_the_zoo_makes_the_same_spec_today(name: str) -> None:
    from autosync.specs.profile.device_rates import ZOO_RATE
    from autosync.specs.profile.run import profile
    from autosync.specs.task_file import load_task

    shipped = load_model(name)
    assert shipped.timeline.device == ZOO_RATE.name
    fresh = profile(load_task(str(ZOO / f"{name}.py")), times="computed", rate=ZOO_RATE, steps=1, cuts=True)
    assert [bare(v) for v in fresh.variables] == [bare(v) for v in shipped.variables]
    assert fresh.optimizer == shipped.optimizer
    assert fresh.notes == shipped.notes
    for ours, theirs in zip(shipped.timeline.forward, fresh.timeline.forward, strict=True):
        assert (ours.module, ours.variables) == (theirs.module, theirs.variables)
        assert ours.seconds == pytest.approx(theirs.seconds, rel=1e-3)
    assert (fresh.timeline.cuts, fresh.timeline.mixes) == (shipped.timeline.cuts, shipped.timeline.mixes)


@pytest.mark.parametrize("name", QUICK)
def test_a_measured_profile_has_the_same_facts(name: str) -> None:
    from autosync.specs.profile.run import profile
    from autosync.specs.task_file import load_task

    shipped = load_model(name)
    measured = profile(load_task(str(ZOO / f"{name}.py")), steps=3)
    assert [bare(v) for v in measured.variables] == [bare(v) for v in shipped.variables]
    assert measured.optimizer == shipped.optimizer
    assert [s.variables for s in measured.timeline.backward] == [s.variables for s in shipped.timeline.backward]
    for ours, theirs in zip(shipped.variables, measured.variables, strict=True):
        if ours.touched_rows is not None:
            # Other batches, the same distribution.
            assert theirs.touched_rows == pytest.approx(ours.touched_rows, rel=0.1, abs=5)
