"""Trees are read back from their file unchanged, and other contents of a file never reach XGBoost."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autosync.errors import InputError
from autosync.simulators.learned.trees import dump_booster, load_booster

_WIDTH = 4


@functools.cache
def _trained() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(80, _WIDTH)).astype(np.float32)
    matrix = xgboost.DMatrix(values, values[:, 0] * values[:, 1])
    return xgboost.train({"base_score": 0.0, "max_depth": 3, "nthread": 1}, matrix, 4), matrix


def _predicted(booster: Any) -> Any:
    return booster.predict(_trained()[1], output_margin=True)


def _fields() -> Any:
    return json.loads(dump_booster(_trained()[0]))


def test_a_file_holds_the_same_trees() -> None:
    loaded = load_booster(_fields(), num_features=_WIDTH)
    assert _predicted(loaded) == pytest.approx(_predicted(_trained()[0]), abs=1e-6)


def _tree(fields: Any) -> Any:
    return fields["learner"]["gradient_booster"]["model"]["trees"][1]


@pytest.mark.parametrize(
    ("column", "position", "value", "told"),
    [
        ("left_children", 0, 0, "come behind"),
        ("left_children", 0, 10**9, "come behind"),
        ("right_children", 0, -7, "come behind"),
        ("left_children", 0, 2, "child of one other"),
        ("split_indices", 0, _WIDTH, "does not exist"),
        ("split_indices", 0, -1, "does not exist"),
        ("split_indices", 0, 1.5, "whole numbers"),
        ("split_indices", 0, True, "whole numbers"),
        ("split_conditions", 0, "much", "no number"),
        ("split_conditions", 0, 1e300, "no number"),
        ("default_left", 0, 2, "neither 0 nor 1"),
        ("split_type", 0, 1, "categories"),
    ],
)
def test_a_tree_that_is_none_is_refused(column: str, position: int, value: Any, told: str) -> None:
    fields = _fields()
    _tree(fields)[column][position] = value
    with pytest.raises(InputError, match=told):
        load_booster(fields, num_features=_WIDTH)


def test_a_newer_xgboost_is_named() -> None:
    fields = _fields()
    fields["version"] = [99, 0, 0]
    with pytest.raises(InputError, match=r"written by XGBoost 99\.0\.0"):
        load_booster(fields, num_features=_WIDTH)


def test_another_booster_and_other_features_are_refused() -> None:
    fields = _fields()
    with pytest.raises(InputError, match="of 4 features"):
        load_booster(fields, num_features=_WIDTH + 1)
    fields["learner"]["gradient_booster"]["name"] = "dart"
    with pytest.raises(InputError, match="no gbtree"):
        load_booster(fields, num_features=_WIDTH)


_junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_hostile_files_are_refused_or_harmless(data: st.DataObject) -> None:
    fields = copy.deepcopy(_fields())
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = fields if data.draw(st.booleans()) else _tree(fields)
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.integers(0, 4)) == 0:
                place[key] = data.draw(_junk | st.integers(-3, 12))
                break
            place = place[key]
        if not isinstance(fields.get("learner"), dict):
            break
        try:
            _tree(fields)["left_children"]
        except (KeyError, IndexError, TypeError):
            break
    try:
        loaded = load_booster(fields, num_features=_WIDTH)
    except InputError:
        return
    assert np.isfinite(_predicted(loaded)).all()
