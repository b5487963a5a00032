"""Model spec files: what is written reads back, mistakes are told with their line, and names are found."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from autosync import documents
from autosync.errors import DocumentError, InputError, UnknownNameError
from autosync.specs.graph_batching import GraphProfile, PolicySeconds
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import (
    dump_model,
    format_model,
    load_model,
    model_of,
    save_model,
    shipped_models,
    split_dilation,
)
from tests.helpers.mutations import mutations
from tests.helpers.random_specs import models, random_model

SMALL = """\
schema: autosync.model/1
name: small
optimizer: {name: SGD}
variables:
- {name: fc.weight, shape: [3, 4], kind: linear, use: 0, ready: 1, factor_rows: 8}
- {name: fc.bias, shape: [3], kind: dense, use: 0, ready: 0}
timeline:
  device: none
  source: computed
  forward:
  - {module: fc, seconds: 1.5e-06, variables: [fc.weight, fc.bias]}
  backward:
  - {module: fc, seconds: 0.25, variables: [fc.bias, fc.weight]}
"""

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def parse(text: str) -> ModelSpec:
    document = documents.parse_document(text, file="m.yaml")
    return documents.parse(document, kind="model", version=1, into=ModelSpec)


def test_the_form_is_one_line_a_variable(small: Path) -> None:
    assert format_model(load_model(str(small))) == SMALL


@given(models(), texts.filter(str.isprintable), st.lists(texts, max_size=3))
def test_what_is_written_reads_back(model: ModelSpec, name: str, notes: list[str]) -> None:
    model = replace(model, name=name, notes=tuple(notes))
    text = format_model(model)
    assert parse(text) == model
    # Other programs see the same values.
    assert yaml.safe_load(text) == dump_model(model)
    assert parse(documents.format_json(dump_model(model))) == model


@given(models(), st.dictionaries(texts, texts, max_size=5))
@example(random_model(random.Random(0)), {",": ":", ":": "{", "''": "no", "no": "1", "1": "#", "a: b": ""})
def test_kinds_of_vertices_may_have_any_name(model: ModelSpec, table: dict[str, str]) -> None:
    policies = (PolicySeconds(order="depth", seconds=1.0),)
    graphs = GraphProfile(vertices=(1,), depths=(1,), policies=policies, table=table)
    model = replace(model, graphs=graphs)
    text = format_model(model)
    assert parse(text) == model
    assert yaml.safe_load(text) == dump_model(model)


@given(models())
def test_files_of_both_formats_read_back(tmp_path_factory: pytest.TempPathFactory, model: ModelSpec) -> None:
    for name in ("model.yaml", "model.json"):
        path = tmp_path_factory.mktemp("files") / name
        save_model(model, path)
        assert load_model(str(path)) == model


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("SGD}", "SGD, elementwize: true}", 3, "did you mean 'elementwise'?"),
        ("shape: [3, 4]", "shape: [3, -4]", 5, "empty axis"),
        ("factor_rows: 8", "factor_rows: 0", 5, "factor_rows of 1 or more"),
        ("kind: dense", "kind: denze", 6, "did you mean 'dense'?"),
        ("seconds: 0.25", "seconds: -1", 13, "is no duration"),
        ("seconds: 0.25", "seconds: soon", 13, "timeline.backward[0].seconds"),
        ("source: computed", "source: guessed", 9, "known: measured, computed"),
        ("ready: 1", "ready: 3", 1, "ready must count"),
        ("autosync.model/1", "autosync.model/2", 1, "newer than this autosync"),
        ("autosync.model/1", "autosync.cluster/1", 1, "this is no model file"),
    ],
)
def test_a_mistake_is_told_with_its_line(small: Path, old: str, new: str, line: int, message: str) -> None:
    small.write_text(SMALL.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(DocumentError) as caught:
        load_model(str(small))
    [problem] = caught.value.problems
    assert (problem.file, problem.line) == (str(small), line)
    assert message in str(problem)


def test_no_mutant_of_a_file_does_worse_than_a_problem_with_a_line() -> None:
    rng = random.Random(0)
    original = format_model(random_model(rng, num_variables=4))
    refusals = []
    for _ in range(300):
        try:
            parse(mutations(original, rng))
        except DocumentError as error:
            refusals.append(error)
    assert len(refusals) > 100
    assert all(p.file == "m.yaml" and p.line >= 1 for error in refusals for p in error.problems)


def test_shipped_models_go_by_name() -> None:
    assert load_model("resnet18").name == "resnet18"
    assert load_model("resnet18@x4").timeline.seconds == pytest.approx(4 * load_model("resnet18").timeline.seconds)
    assert "bert_large" in shipped_models()


def test_names_nobody_knows() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'resnet50'"):
        load_model("resnt50")
    with pytest.raises(DocumentError, match=r"gone\.yaml: cannot be read: no such file"):
        load_model("gone.yaml")


def test_a_file_with_an_at_sign_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "small@x4"
    path.write_text(SMALL, encoding="utf-8")
    assert load_model(str(path)).name == "small"
    assert load_model(f"{path}@x2").name == "small@x2"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("resnet18@4", "has no x behind the @ .*; write resnet18@x4"),
        ("resnet18@x0", "cannot be dilated by 0"),
        ("resnet18@x-2", "cannot be dilated by -2"),
        ("resnet18@xnan", "cannot be dilated by nan"),
        ("resnet18@x1e400", "cannot be dilated by 1e400"),
        ("resnet18@x1e309", "cannot be dilated by 1e309"),
        ("resnet18@x", "has no factor behind the @"),
        ("resnet18@big", "has no factor behind the @"),
    ],
)
def test_dilations_that_cannot_be(target: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_model(target)


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_any_factor_above_zero_dilates(factor: float) -> None:
    assert split_dilation(f"model@x{factor!r}") == ("model", factor)


def test_a_task_is_no_spec_but_a_model(tmp_path: Path) -> None:
    file = tmp_path / "task.py"
    with pytest.raises(InputError, match=r"is a task, not a model spec .*; autosync profile .*task\.py -o task\.yaml"):
        load_model(f"{file}@x2")
    file.write_text(
        "import torch\n"
        "from autosync import Task\n"
        "def small():\n"
        "    return Task(\n"
        "        model=lambda: torch.nn.Linear(2, 1),\n"
        "        batch=lambda generator: torch.rand(3, 2, generator=generator),\n"
        "        loss=lambda model, batch: model(batch).mean(),\n"
        "        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),\n"
        "    )\n",
        encoding="utf-8",
    )
    assert model_of(f"{file}:small").num_parameters == 3
    assert model_of(f"{file}:small@x2").name == "task_small@x2"
    assert model_of("resnet18@x2").name == "resnet18@x2"
