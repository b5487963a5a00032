"""What DDP's users expect of a training script: it comes out as under stock DDP, or it is refused by name.

Every script of `expectation_cases.py` runs under each way in which training is carried out, on real ranks.
"""

import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.specs.model_file import model_of
from autosync.strategy.bundle import save_bundle
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors

Overlap: TypeAlias = Literal["backward", "forward"]

LIMIT_SECONDS = 400.0

TASKS = Path(__file__).with_name("expectation_tasks.py")

# Each way: the preset (or `by_factors`), what it overlaps, and whether torch's reducer may have it.
WAYS: dict[str, tuple[str, Overlap, bool]] = {
    "reducer": ("ddp", "backward", True),
    "backward": ("ddp", "backward", False),
    "forward": ("all_reduce_per_variable", "forward", False),
    "shards": ("sharded", "backward", False),
    "shards forward": ("sharded", "forward", False),
    "server": ("ps_load_balanced", "backward", False),
    "factors": ("factors", "backward", False),
}
EVERYWHERE = tuple(way for way in WAYS if way != "factors")
USERS = ("reducer", "backward")
"""Ways in which gradients are the users' when backward has returned."""
WORKERS = ("reducer", "backward", "forward")
"""Ways in which every worker has all gradients, and the whole state of the optimizer."""
APART = ("shards", "shards forward", "server")
"""Ways in which none has."""
ENGINE = ("backward", "forward", "shards", "shards forward", "server")
"""Ways in which our engine runs."""
ENGINES = ("forward", "shards", "shards forward", "server")
"""Ways in which the engine updates."""

# Script, task, and the ways in which it comes out as under DDP. What runs together takes a minute on a busy machine.
SAME: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {
    "all gradients at once": [
        ("clips", "layers", WORKERS),
        ("clips", "clipped", EVERYWHERE),
        ("clips_otherwise", "layers", WORKERS),
        ("clips_some", "layers", WORKERS),
        ("clips_others_alike", "clipped", EVERYWHERE),
        ("logs_a_norm", "clipped", WORKERS),
        ("clips_some_steps", "clipped", EVERYWHERE),
        ("autocasts", "single", EVERYWHERE),
        ("scales", "single", WORKERS),
        ("scales", "scaled", EVERYWHERE),
        ("scales", "scaled_adam", EVERYWHERE),
        ("scales", "scaled_fused", EVERYWHERE),
        ("scales_and_clips", "single", WORKERS),
        ("scales_and_clips", "scaled_and_clipped", EVERYWHERE),
        ("scales_until_it_fits", "scaled_adam", EVERYWHERE),
        ("scaler_is_off", "scaled_and_clipped", EVERYWHERE),
        ("scales", "scaled", ("factors",)),
    ],
    "steps": [
        ("plain", "everything", EVERYWHERE),
        ("accumulates", "everything", EVERYWHERE),
        ("plain", "scaled", EVERYWHERE),
        ("plain", "everything", ("factors",)),
        ("plain", "layers", ("factors",)),
        ("checkpoints", "layers", ("factors",)),
        ("schedules", "everything", EVERYWHERE),
        ("several_forwards", "everything", EVERYWHERE),
        ("uneven", "everything", EVERYWHERE),
        ("checkpoints", "layers", EVERYWHERE),
        ("checkpoints_reentrant", "layers", EVERYWHERE),
    ],
    # Compiling takes seconds a script; `COMPILED` has the other ways.
    "compiled": [("compiled_after", "everything", ("reducer",)), ("compiled_in_place", "layers", ("shards forward",))],
    "states": [
        ("state_dict_is_bare", "everything", EVERYWHERE),
        ("state_dict_of_layers", "everything", EVERYWHERE),
        ("adds_a_group", "layers", USERS),
        ("resumes", "everything", WORKERS),
        ("resumes_in_a_new_model", "everything", WORKERS),
        ("loads_a_model", "everything", EVERYWHERE),
        ("averages", "everything", EVERYWHERE),
        ("copies", "everything", EVERYWHERE),
        ("fails_in_forward", "layers", EVERYWHERE),
        ("fails_before_gradients", "layers", EVERYWHERE),
        ("never_zeroes", "layers", USERS),
        ("zeroes_in_place", "layers", EVERYWHERE),
        ("zeroes_after_backward", "layers", EVERYWHERE),
        ("zeroes_after_backward", "clipped", EVERYWHERE),
        ("zeroes_and_steps", "layers", USERS),
        ("throws_one_away", "layers", USERS),
        ("averages_at_once", "everything", EVERYWHERE),
        ("keeps_data", "everything", EVERYWHERE),
        ("clamps_data", "layers", EVERYWHERE),
        ("clamps_in_forward", "layers", EVERYWHERE),
        ("steps_without_backward", "layers", ENGINES),
        ("sets_a_gradient", "layers", WORKERS),
        ("uses_a_closure", "layers", EVERYWHERE),
        ("two_at_once", "layers", EVERYWHERE),
        ("again", "everything", WORKERS),
        ("buffers", "normed", EVERYWHERE),
        ("buffers_of_all", "normed", EVERYWHERE),
    ],
    "optimizers": [
        ("two_optimizers", "layers", EVERYWHERE),
        ("two_optimizers_and_clipping", "clipped", EVERYWHERE),
        ("two_kinds", "layers", USERS),
        ("one_of_two_is_given", "layers", USERS),
        ("another_comes_later", "layers", USERS),
        ("steps_in_turn", "layers", USERS),
        ("steps_twice", "layers", USERS),
        ("calls_the_parent", "layers", USERS),
        ("lbfgs", "layers", USERS),
        ("step_fails_once", "layers", USERS),
        ("holds_a_layer", "layers", EVERYWHERE),
        ("holds_frozen_ones", "everything", EVERYWHERE),
        ("takes_a_parameter_out", "layers", USERS),
        ("gives_new_memory", "layers", EVERYWHERE),
    ],
    "states of optimizers": [
        ("clears_the_state", "layers", EVERYWHERE),
        ("clears_before_any", "layers", EVERYWHERE),
        ("replaces_the_state", "layers", EVERYWHERE),
        ("drops_an_entry", "layers", WORKERS),
        ("scales_the_state", "layers", WORKERS),
        ("puts_a_state", "layers", WORKERS),
        ("looks_at_the_state", "layers", WORKERS),
        ("copies_the_optimizer", "layers", WORKERS),
        ("clears_between_backward_and_step", "layers", EVERYWHERE),
        ("scales_what_came_home", "layers", EVERYWHERE),
        ("drops_what_came_home", "layers", EVERYWHERE),
        ("looks_at_what_came_home", "layers", EVERYWHERE),
        ("scales_and_saves", "layers", EVERYWHERE),
        ("looks_ahead", "layers", USERS),
        ("looks_ahead_alone", "layers", USERS),
        ("plain", "adaptive", USERS),
        ("marked", "marked", WORKERS),
        ("plain", "empty", EVERYWHERE),
        ("has_become_another", "layers", USERS),
    ],
}

COMPILED = [
    ("compiled_after", "everything", EVERYWHERE),
    ("compiled_before", "everything", EVERYWHERE),
    ("compiled_by_aot", "everything", EVERYWHERE),
    ("compiled_model_is_given", "everything", EVERYWHERE),
    ("compiled_in_place", "layers", EVERYWHERE),
]

LOOKS = ("drops_an_entry", "scales_the_state", "puts_a_state", "looks_at_the_state", "copies_the_optimizer")
"""Scripts that look at the optimizer's state, which may be elsewhere."""

# Script, task, ways, and how the refusal begins.
REFUSED: list[tuple[str, str, tuple[str, ...], str]] = [
    ("clips", "layers", APART, "OperationError: the gradient of 0.weight belongs to the engine"),
    ("clips_otherwise", "clipped", ENGINES, "OperationError: the script multiplies gradients by "),
    ("clips_some", "clipped", ENGINES, "OperationError: the norm of some gradients without that of 0.weight"),
    ("clips_with_others", "clipped", ENGINES, "OperationError: the norm of the gradient of 0.weight together with"),
    ("clips_the_largest", "clipped", ENGINES, "OperationError: the norm of order inf of gradients"),
    ("clips_values", "clipped", APART, "OperationError: the gradient of 0."),
    ("clips_values", "clipped", ("forward",), "OperationError: the script has changed the gradient of 0."),
    ("logs_a_norm", "clipped", APART, "OperationError: the norm of the gradient of 0.weight by itself"),
    ("clips_after_the_step", "clipped", ENGINES, "OperationError: the gradients are those of the last step"),
    ("clips_before_unscaling", "scaled_and_clipped", ENGINES, "OperationError: gradients are unscaled after they were"),
    ("scales", "single", APART, "OperationError: the gradient of 0.weight belongs to the engine"),
    ("never_zeroes", "layers", ENGINES, "OperationError: the gradient of 0.weight was there already when a backward"),
    ("never_zeroes", "clipped", ENGINES, "OperationError: the gradient of 0.weight was there already when a backward"),
    ("zeroes_and_steps", "layers", ENGINES, "OperationError: the gradient of 0.weight was set to zero after backward"),
    ("throws_one_away", "layers", ENGINES, "OperationError: the gradient of 0.weight was thrown away"),
    ("sets_a_gradient", "layers", APART, "OperationError: the gradient of 0.weight was replaced"),
    ("two_kinds", "layers", ENGINES, "OperationError: the optimizer is torch.optim.sgd.SGD; the bundle was made for"),
    (
        "one_of_two_is_given",
        "layers",
        ENGINES,
        "OperationError: 2.weight is in no optimizer that parallelize was given",
    ),
    (
        "another_comes_later",
        "layers",
        ENGINES,
        "OperationError: an optimizer that parallelize was not given (SGD) steps",
    ),
    ("steps_in_turn", "layers", ENGINES, "OperationError: a backward pass before all optimizers of the model have"),
    ("steps_twice", "layers", ENGINES, "OperationError: optimizer.step() was called without a synchronised backward"),
    ("takes_a_parameter_out", "layers", ENGINES, "OperationError: the optimizer has 3 parameters in 1 groups, and had"),
    ("replaces_a_parameter", "layers", EVERYWHERE, "OperationError: the model has another tensor for 0.weight than"),
    ("has_become_another", "layers", ENGINES, "OperationError: the optimizer is torch.optim.adam.Adam, and the engine"),
    ("wraps", "layers", EVERYWHERE, "OperationError: parallelize was given expectation_optimizers.wraps"),
    ("looks_ahead", "layers", ENGINES, "OperationError: the optimizer is expectation_optimizers.Lookahead; the bundle"),
    ("looks_ahead_alone", "layers", ENGINES, "OperationError: an optimizer that parallelize was not given (Look"),
    *((script, "layers", APART, "OperationError: the optimizer's state of 0.") for script in LOOKS),
    ("adds_a_group", "layers", ENGINES, "OperationError: the optimizer has 4 parameters in 2 groups, and had 2 in 1"),
    ("thaws", "everything", EVERYWHERE, "OperationError: frozen.weight is trainable now; in the bundle it is frozen"),
    ("several_forwards", "layers", ("factors",), "OperationError: the gradient of 2.weight came from 3 calls"),
    ("fails_among_gradients", "layers", ENGINE, "OperationError: a backward pass has ended with an error"),
    ("fails_among_gradients", "layers", ("reducer",), "OperationError: a backward pass has ended with an error"),
    ("resumes", "everything", APART, "OperationError: the optimizer's state of "),
]

CHOSEN = frozenset(os.environ.get("AUTOSYNC_SCRIPTS", "").split()) or {
    row[0] for row in (*itertools.chain(*SAME.values()), *COMPILED, *REFUSED)
}
"""The scripts that are run: all of them, but where a tool looks for the test that notices a fault."""


QUICK = {"steps"}
"""The lists that are always run. `make ddp-suite` and the slow tests run more behaviours of each kind."""
LISTS = [
    *[pytest.param(rows, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, rows in SAME.items()],
    pytest.param(COMPILED, id="compiled in every way", marks=pytest.mark.slow),
]


def options_of(way: str) -> dict[str, Any]:
    """The scripts' options: who waits for no updates is found out where these take a while."""
    _, overlap, hand_off = WAYS[way]
    return {"hand_off": hand_off, "is_late": overlap == "forward"}


def arguments(ranks: Any, script: str, task: str, way: str) -> dict[str, Any]:
    """What a case of `expectation_cases` is given."""
    bundle = write(ranks.folder, task, way, ranks.cluster)
    return {"script": script, "task": task, "bundle": bundle, **options_of(way)}


def by_factors(model: ModelSpec) -> Strategy:
    """Factors of every layer that has them, all else summed up."""

    def message(variable: Variable) -> Message:
        return Message(
            parts=(variable.name,), synchroniser=SufficientFactors() if variable.kind == "linear" else AllReduce()
        )

    return Strategy(messages=tuple(message(variable) for variable in sorted(model.variables, key=lambda v: v.ready)))


def write(folder: Path, task: str, way: str, cluster: ClusterSpec) -> str:
    """The path of the bundle by which a task is trained in some way."""
    preset, overlap, _ = WAYS[way]
    path = folder / f"{task}-{preset}-{overlap}.yaml"
    if not path.exists():
        model = model_of(f"{TASKS}:{task}")
        made = by_factors(model) if preset == "factors" else build_preset(preset, model, cluster)
        strategy = replace(made, overlap=overlap)
        bundle = bundled(strategy, model, cluster)
        save_bundle(path, bundle)
    return str(path)


DESCRIPTIONS = {
    "reducer": """torch's reducer: 2 workers
1 message of 5 parts, 1 transfer in 1 lane, overlap backward
all_reduce (native)
the user's optimizer updates everything
buffers of 48 bytes come from the first worker in every step""",
    "forward": """autosync's engine: 2 workers
5 messages of 5 parts, 5 transfers in 1 lane, overlap forward
all_reduce (native)
the engine updates everything
buffers of 48 bytes come from the first worker in every step""",
}


@pytest.mark.slow
def test_what_is_no_comparison(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("one node")

    def of(task: str, way: str) -> dict[str, Any]:
        return {"bundle": write(ranks.folder, task, way, ranks.cluster), **options_of(way)}

    # A layer of this task is never used, and our engine would leave its gradients where they are.
    all_travel = {"find_unused_parameters": False}
    cases = [("expectation_cases:described", {**of("everything", way), **all_travel}) for way in DESCRIPTIONS]
    cases += [("expectation_cases:first_rank_evaluates", of("normed", way)) for way in EVERYWHERE]
    cases += [("expectation_cases:keeps_own_buffers", of("normed", way)) for way in EVERYWHERE]
    for answers in ranks.run(cases):
        assert answers == [*DESCRIPTIONS.values(), *[""] * 2 * len(EVERYWHERE)]


@pytest.mark.slow
def test_groups_of_a_larger_world(make_ranks: Callable[[str], Any]) -> None:
    """Two data-parallel groups of two ranks each, as where the others of a rank's node split its model."""
    ranks, pair = make_ranks("four nodes"), make_ranks("one node")
    ways = EVERYWHERE
    cases = [
        (
            "expectation_cases:two_groups_at_once",
            {"bundle": write(pair.folder, "everything", way, pair.cluster), **options_of(way)},
        )
        for way in ways
    ]
    assert ranks.run(cases) == [[""] * len(ways)] * 4


@pytest.mark.parametrize("listed", LISTS)
def test_a_script_comes_out_as_under_ddp(
    listed: list[tuple[str, str, tuple[str, ...]]], make_ranks: Callable[[str], Any]
) -> None:
    ranks = make_ranks("one node")
    rows = [(script, task, way) for script, task, ways in listed for way in ways if script in CHOSEN]
    if not rows:
        pytest.skip("none of these is chosen")
    cases = [("expectation_cases:compared", arguments(ranks, *row)) for row in rows]
    for rank, answers in enumerate(ranks.run(cases, limit_seconds=LIMIT_SECONDS)):
        assert {row: answer for row, answer in zip(rows, answers, strict=False) if answer} == {}, f"rank {rank}"
        assert len(answers) == len(rows), f"rank {rank} did not come to its end"


@pytest.mark.slow
def test_a_script_is_refused_by_name(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("one node")
    rows = [(script, task, way, words) for script, task, ways, words in REFUSED for way in ways if script in CHOSEN]
    if not rows:
        pytest.skip("none of these is chosen")
    cases = [("expectation_cases:refused", arguments(ranks, *row[:3])) for row in rows]
    for rank, answers in enumerate(ranks.run(cases, limit_seconds=LIMIT_SECONDS)):
        for (*row, words), answer in zip(rows, answers, strict=False):
            assert answer.startswith(words), (rank, row)
        assert len(answers) == len(rows), f"rank {rank} did not come to its end"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles with g++")
def test_what_inductor_compiles_comes_out_as_under_ddp(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("one node")
    rows = [("compiled_by_inductor", "everything", way) for way in EVERYWHERE]
    cases = [("expectation_cases:compared", arguments(ranks, *row)) for row in rows]
    assert ranks.run(cases, limit_seconds=500) == [[""] * len(EVERYWHERE)] * 2
