"""Reads boosted trees in XGBoost's JSON as untrusted input: every field is checked before XGBoost sees it.

XGBoost trusts the models that it loads; a child or a feature that does not exist would make it read foreign memory. So
the contents of a file are checked, and XGBoost gets a new document made from the checked contents: trees with
thresholds on numbers, and nothing else that its format allows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from autosync.errors import InputError

MAX_TREES = 2000
MAX_NODES = 1024
MAX_NUMBER = 1e6

_NO_PARENT = 2**31 - 1


def dump_booster(booster: Any) -> str:
    """Return a trained booster in XGBoost's own JSON."""
    return bytes(booster.save_raw(raw_format="json")).decode()


def load_booster(fields: Any, *, num_features: int) -> Any:
    """Return the booster in a file's fields; raise with the broken rule if it is invalid."""
    import xgboost

    trees = _trees(fields, num_features)
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(json.dumps(_written_anew(trees, num_features)).encode()))
    return booster


def _trees(fields: Any, num_features: int) -> list[dict[str, list[Any]]]:
    import xgboost

    version = _at(fields, "version")
    if not (isinstance(version, list) and len(version) == 3 and all(type(number) is int for number in version)):
        raise InputError("the version is no XGBoost version", rule="version is a list of three numbers")
    installed = int(xgboost.__version__.split(".")[0])
    if version[0] > installed:
        what = f"written by XGBoost {'.'.join(map(str, version))}"
        raise InputError(what, rule=f"XGBoost {installed} reads what versions up to {installed} wrote")
    booster = _at(fields, "learner", "gradient_booster")
    if _at(booster, "name") != "gbtree":
        raise InputError("the booster is no gbtree", rule="boosted trees with a number at each leaf")
    told = _at(fields, "learner", "learner_model_param", "num_feature")
    if told != str(num_features):
        raise InputError(f"the trees are of {str(told)[:20]} features", rule=f"the manifest names {num_features}")
    trees = _at(booster, "model", "trees")
    if not isinstance(trees, list) or not 1 <= len(trees) <= MAX_TREES:
        raise InputError("no list of trees, or too long", rule=f"1 to {MAX_TREES} trees")
    return [_checked(tree, position, num_features) for position, tree in enumerate(trees)]


def _at(value: Any, *path: str) -> Any:
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            raise InputError(f"{'.'.join(path)} is missing", rule="a model in XGBoost's JSON")
        value = value[key]
    return value


_COLUMNS = ("left_children", "right_children", "split_indices", "split_conditions", "default_left")


def _checked(tree: Any, position: int, num_features: int) -> dict[str, list[Any]]:
    """Return the columns of a tree; raise unless every walk from its root ends at a leaf."""

    def wrong(what: str, rule: str) -> InputError:
        return InputError(f"tree {position}: {what}", rule=rule)

    columns = {name: _at(tree, name) for name in _COLUMNS}
    left, right = columns["left_children"], columns["right_children"]
    if not isinstance(left, list) or not 1 <= len(left) <= MAX_NODES:
        raise wrong("no nodes, or too many", f"1 to {MAX_NODES} nodes")
    count = len(left)
    for name, column in columns.items():
        if not isinstance(column, list) or len(column) != count:
            raise wrong(f"{name} has not {count} entries", "every node has one entry in each column")
    for name in ("left_children", "right_children", "split_indices", "default_left"):
        if not all(type(one) is int for one in columns[name]):
            raise wrong(f"{name} holds something else than whole numbers", "whole numbers")
    if not all(_is_number(one) for one in columns["split_conditions"]):
        raise wrong("a threshold or a leaf is no number", f"finite numbers up to {MAX_NUMBER:g}")
    if not all(0 <= one < num_features for one in columns["split_indices"]):
        raise wrong("a feature that does not exist", f"features count from 0 to {num_features - 1}")
    if not all(one in (0, 1) for one in columns["default_left"]):
        raise wrong("default_left is neither 0 nor 1", "0 or 1")
    if any(_at(tree, "split_type")) if isinstance(_at(tree, "split_type"), list) else True:
        raise wrong("a split on categories", "splits on numbers only")
    _check_children(left, right, wrong)
    return columns


def _check_children(left: Sequence[int], right: Sequence[int], wrong: Any) -> None:
    children: list[int] = []
    for node, pair in enumerate(zip(left, right, strict=True)):
        if pair == (-1, -1):
            continue
        if not all(node < child < len(left) for child in pair):
            raise wrong(f"node {node} has the children {list(pair)}", "a node's children come behind it")
        children += pair
    if sorted(children) != list(range(1, len(left))):
        raise wrong("nodes that hang on none or on two others", "every node but the first is the child of one other")


def _is_number(value: Any) -> bool:
    # Comparisons with NaN and infinity are false here; a long integer would overflow math.isfinite.
    return type(value) in (int, float) and abs(value) <= MAX_NUMBER


def _written_anew(trees: Sequence[Mapping[str, list[Any]]], num_features: int) -> dict[str, Any]:
    count = len(trees)
    model = {
        "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(count)},
        "iteration_indptr": list(range(count + 1)),
        "tree_info": [0] * count,
        "trees": [_tree_anew(tree, number, num_features) for number, tree in enumerate(trees)],
    }
    learner = {
        "attributes": {},
        "feature_names": [],
        "feature_types": [],
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {
            "base_score": "[0E0]",
            "boost_from_average": "0",
            "num_class": "0",
            "num_feature": str(num_features),
            "num_target": "1",
        },
        "objective": {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}},
    }
    return {"learner": learner, "version": [3, 0, 0]}


def _tree_anew(tree: Mapping[str, list[Any]], number: int, num_features: int) -> dict[str, Any]:
    count = len(tree["left_children"])
    parents = [_NO_PARENT] * count
    for node, pair in enumerate(zip(tree["left_children"], tree["right_children"], strict=True)):
        for child in pair:
            if child >= 0:
                parents[child] = node
    # XGBoost's reader would take 1 for an integer, and integers are not valid thresholds.
    thresholds = [float(one) for one in tree["split_conditions"]]
    return {
        **tree,
        "base_weights": thresholds,
        "split_conditions": thresholds,
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "id": number,
        "loss_changes": [0.0] * count,
        "parents": parents,
        "split_type": [0] * count,
        "sum_hessian": [1.0] * count,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(num_features),
            "num_nodes": str(count),
            "size_leaf_vector": "1",
        },
    }
