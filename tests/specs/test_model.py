"""The model spec's own rules, its figures, and what its fingerprint depends on."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.untrained import Untrained
from tests.helpers.random_specs import models

WEIGHT = Variable(name="fc.weight", shape=(3, 4), kind="linear", use=0, ready=1, factor_rows=8)
BIAS = Variable(name="fc.bias", shape=(3,), dtype="float16", use=0, ready=0)
TABLE: dict[str, Any] = {"name": "table", "shape": (10, 2), "kind": "embedding", "use": 0, "ready": 0}


def timeline(**fields: Any) -> Timeline:
    both = ("fc.bias", "fc.weight")
    standard = {
        "forward": (Segment(module="fc", seconds=1.0, variables=both),),
        "backward": (Segment(module="fc", seconds=2.0, variables=both),),
        "optimizer": (Segment(module="fc", seconds=0.5, variables=both),),
    }
    return Timeline(device="none", source="computed", **standard | fields)


def model(**fields: Any) -> ModelSpec:
    standard = {"variables": (WEIGHT, BIAS), "optimizer": OptimizerSpec(name="SGD"), "timeline": timeline()}
    return ModelSpec(name="small", **standard | fields)


def segment(*names: str) -> Segment:
    return Segment(module="fc", seconds=1.0, variables=names)


def test_bytes_follow_the_dtype() -> None:
    assert (WEIGHT.num_bytes, BIAS.num_bytes, model().num_bytes) == (48, 6, 54)


def test_parameters_count_those_without_a_gradient_but_not_the_frozen() -> None:
    untrained = (
        Untrained(name="idle", shape=(5,), reason="unused"),
        Untrained(name="cold", shape=(7,), reason="frozen"),
    )
    assert model(untrained=untrained).num_parameters == 12 + 3 + 5


def test_slow_motion_stretches_all_compute_and_no_bytes() -> None:
    slow = model().dilated(4)
    assert (slow.name, slow.timeline.seconds, slow.num_bytes) == ("small@x4", 14.0, 54)
    assert slow.fingerprint() == model().fingerprint()


def test_a_step_has_all_its_microsteps_and_one_update() -> None:
    assert model(accumulation_steps=3).step_seconds == 3 * 3.0 + 0.5
    assert model().step_seconds == model().timeline.seconds


@pytest.mark.parametrize(
    "changed",
    [
        {"variables": (replace(WEIGHT, factor_rows=9), BIAS)},
        {"optimizer": OptimizerSpec(name="SGD", elementwise=False)},
        {"accumulation_steps": 2},
        {"clip_norm": 1.0},
        {"loss_scaling": True},
    ],
)
def test_the_fingerprint_knows_all_that_plans_depend_on(changed: dict[str, Any]) -> None:
    assert model(**changed).fingerprint() != model().fingerprint()


def test_the_fingerprint_knows_which_gradients_are_sparse() -> None:
    table = Variable(**TABLE, touched_rows=3.0, max_touched_rows=3)
    empty = {"forward": (), "backward": (), "optimizer": ()}
    dense, sparse = (
        model(variables=(replace(table, sparse=value),), timeline=timeline(**empty)) for value in (False, True)
    )
    assert dense.fingerprint() != sparse.fingerprint()


def test_the_fingerprint_knows_no_times() -> None:
    other = timeline(note="measured again", forward=(segment("fc.weight", "fc.bias"),))
    assert model(timeline=other, notes=("a note",), batch_size=9).fingerprint() == model().fingerprint()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "is no variable name"),
        ({"name": "a[0]"}, "without brackets"),
        ({"name": "a\x1b[31m"}, r"is no variable name \(one line"),
        ({"shape": (3, 0)}, "has an empty axis"),
        ({"use": -1}, "use and ready are positions"),
        ({"shape": (3,), "kind": "linear", "factor_rows": 4}, "two axes"),
        ({"kind": "linear"}, "factor_rows of 1 or more"),
        ({"kind": "linear", "factor_rows": 4, "aliases": ("other",)}, "no aliases"),
        (TABLE, "touched rows are counted"),
        (TABLE | {"touched_rows": 3.0, "max_touched_rows": 2}, "touched_rows <= max_touched_rows"),
        (TABLE | {"touched_rows": 3.0, "max_touched_rows": 11}, "max_touched_rows <= rows"),
        (TABLE | {"shape": (10,), "touched_rows": 3.0, "max_touched_rows": 3}, "two axes"),
        ({"sparse": True}, "a dense variable is sparse \\(only embeddings have sparse gradients\\)"),
        ({"kind": "linear", "factor_rows": 4, "sparse": True}, "a linear variable is sparse"),
    ],
)
def test_a_variable_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Variable(**{"name": "w", "shape": (3, 4), "use": 0, "ready": 0} | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"variables": ()}, "no trainable variables"),
        ({"batch_size": 0}, "1 or more"),
        ({"accumulation_steps": 0}, "1 or more"),
        ({"clip_norm": 0.0}, "above 0"),
        ({"clip_norm": float("inf")}, "above 0"),
        ({"variables": (BIAS, replace(BIAS, ready=1))}, "the same name"),
        ({"variables": (WEIGHT, replace(BIAS, ready=1))}, "ready must count"),
        ({"untrained": (Untrained(name="fc.bias", shape=(3,), reason="unused"),)}, "untrained too"),
        ({"timeline": timeline(forward=(segment("fc.weight", "fc.bias", "gone"),))}, "the timeline names 'gone'"),
        ({"timeline": timeline(forward=(segment("fc.weight"),))}, "forward pass leaves out 'fc.bias'"),
        ({"timeline": timeline(backward=(segment("fc.weight"),))}, "backward pass leaves out 'fc.bias'"),
        (
            {"timeline": timeline(backward=(segment("fc.weight"), segment("fc.bias")))},
            "backward pass has 'fc.weight' before 'fc.bias'",
        ),
        ({"timeline": timeline(backward=(segment("fc.bias"), segment("fc.weight", "fc.bias")))}, "twice"),
        (
            {
                "variables": (replace(WEIGHT, use=1), BIAS),
                "timeline": timeline(forward=(segment("fc.weight"), segment("fc.bias"))),
            },
            "forward pass has 'fc.weight' before 'fc.bias'",
        ),
    ],
)
def test_a_model_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(**fields)


def test_a_model_may_have_no_times_and_may_use_variables_again() -> None:
    assert model(timeline=timeline(forward=(), backward=(), optimizer=())).timeline.seconds == 0
    assert model(timeline=timeline(forward=(segment("fc.bias", "fc.weight"), segment("fc.bias")))).num_bytes == 54


def test_times_are_durations() -> None:
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="is no duration"):
            Segment(module="fc", seconds=seconds)
    with pytest.raises(ValueError, match="0 or more"):
        OptimizerSpec(name="SGD", state_slots=-1)


@given(models())
def test_variables_are_found_by_name(drawn: ModelSpec) -> None:
    assert [drawn.variable(variable.name) for variable in drawn.variables] == list(drawn.variables)


def test_a_model_is_a_table_of_its_variables() -> None:
    frame = model().to_frame()
    assert list(frame["variable"]) == ["fc.weight", "fc.bias"]
    assert list(frame["num_bytes"]) == [48, 6]
    assert list(frame["shape"]) == ["3 × 4", "3"]
    assert "small: 2 variables, 54 B of gradients; compute of a step: 3.5 s, computed." in model()._repr_html_()
