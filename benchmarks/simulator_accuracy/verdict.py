"""Checks the requirements on simulators with the result of simulator_accuracy.py, and lists what a dataset lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.simulator_accuracy.targets import Material, Target

ENOUGH_STRATEGIES = 150
ENOUGH_TARGETS = 6
_SLOW = 0.75
"""The share of the mean link rate below which a host is slow."""

_KINDS: Mapping[str, Callable[[Target], bool]] = {
    "a slow host": lambda target: _slowest(target) < _SLOW,
    "two ranks a host": lambda target: any(node.devices > 1 for node in target.lot.cluster.nodes),
    "spare servers": lambda target: any(node.role == "server" for node in target.lot.cluster.nodes),
    "sparse embeddings": lambda target: any(one.touched_rows is not None for one in target.lot.model.variables),
}
_LEAST_OR_MOST = {"pair_ranking": "least", "median_error": "most", "top_regret": "most", "top5_regret": "most"}


def missing(material: Material, trials: int) -> Iterator[str]:
    """Yield the missing parts of a dataset that is not complete, in words.

    Simulators learn from `trials` trials of a target.
    """
    targets = material.targets
    if len(targets) < ENOUGH_TARGETS:
        yield f"{len(targets)} combinations are judged by (at least {ENOUGH_TARGETS})"
    for target in targets:
        if len(target.records) < ENOUGH_STRATEGIES:
            yield f"{target.name} has {len(target.records)} random strategies (at least {ENOUGH_STRATEGIES})"
        if (told := target.num_told(trials)) < trials:
            yield f"of {target.name} {told} trials are told and not {trials}: the others are to be judged by"
        if not any(_is_stranger(target, other) for other in material.lots):
            yield f"nothing was measured of other models on other clusters than {target.name}: nothing is transferred"
    for kind, holds in _KINDS.items():
        if not any(map(holds, targets)):
            yield f"no combination that is judged by has {kind}"
    if material.noise == 0:
        yield "no strategy was measured twice: how far trials differ is not known, intervals are of one trial"


def verdicts(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each requirement with its result; the worst combination counts if each must meet it.

    Requirements that the result does not cover have no entry.
    """
    trials, few = document["trials"], document["few"]
    told, transfer = f"told {trials} trials", f"learned, {few} trials"
    timeline = {what: _cells(document, "as they are", "timeline", what) for what in _LEAST_OR_MOST}
    learned = {what: _cells(document, "after trials", "learned", what) for what in _LEAST_OR_MOST}
    found = [
        _worst(timeline, "pair_ranking", 0.95, "timeline, told nothing"),
        _worst(timeline, "median_error", 0.05, "timeline, told nothing"),
        _worst(timeline, "top5_regret", 0.02, "timeline, told nothing"),
        _worst(learned, "pair_ranking", 0.97, f"learned, {told}"),
        _worst(learned, "top_regret", 0.02, f"learned, {told}"),
        *[_ahead(document, other, told) for other in ("linear", "sequence")],
        _mean(document, "learned, no trial", 0.92, "learned, trained on other models and clusters, no trial"),
        _mean(
            document,
            transfer,
            _total(document, "after trials", "learned", "pair_ranking"),
            f"the same, {few} trials, beside {trials} from scratch",
        ),
        _bounds(document),
    ]
    return [one for one in found if one is not None]


def _slowest(target: Target) -> float:
    rates = [min(one.bandwidth_out, one.bandwidth_in) for one in target.lot.cluster.nodes if one.role == "worker"]
    return min(rates) * len(rates) / sum(rates)


def _is_stranger(target: Target, other: Any) -> bool:
    return bool(other.model_name != target.lot.model_name and other.cluster.name != target.lot.cluster.name)


def _cells(document: Mapping[str, Any], part: str, name: str, column: str) -> dict[str, float]:
    """Return a figure of each combination that has it."""
    found = {f"{one['model']} on {one['cluster']}": one.get(part, {}).get(name) for one in document["targets"]}
    return {where: one[column] for where, one in found.items() if one is not None and one[column] is not None}


def _worst(found: Mapping[str, Mapping[str, float]], column: str, wanted: float, what: str) -> dict[str, Any] | None:
    """Return one column, in the combination where it is worst."""
    cells, direction = found[column], _LEAST_OR_MOST[column]
    if not cells:
        return None
    where = (min if direction == "least" else max)(cells, key=lambda one: cells[one])
    good = [one for one in cells.values() if (one >= wanted if direction == "least" else one <= wanted)]
    return {
        "what": f"{what}: {column}, everywhere",
        "wanted": f"{wanted:g} at {direction}",
        "found": cells[where],
        "where": where,
        "holds_in": [len(good), len(cells)],
        "holds": len(good) == len(cells),
    }


def _ahead(document: Mapping[str, Any], other: str, told: str) -> dict[str, Any] | None:
    ours = _cells(document, "after trials", "learned", "pair_ranking")
    theirs = _cells(document, "after trials", other, "pair_ranking")
    by = {where: round(ours[where] - theirs[where], 4) for where in ours.keys() & theirs.keys()}
    if not by:
        return None
    where = min(sorted(by), key=lambda one: by[one])
    return {
        "what": f"learned, {told}: pair_ranking above that of {other}, everywhere",
        "wanted": "more than 0 above",
        "found": by[where],
        "where": where,
        "holds_in": [sum(one > 0 for one in by.values()), len(by)],
        "holds": by[where] > 0,
    }


def _total(document: Mapping[str, Any], part: str, name: str, column: str) -> float | None:
    found = document["total"].get(part, {}).get(name)
    return None if found is None else found[column]


def _mean(document: Mapping[str, Any], name: str, wanted: float | None, what: str) -> dict[str, Any] | None:
    found = _total(document, "transfer", name, "pair_ranking")
    if found is None or wanted is None:
        return None
    return {
        "what": f"{what}: pair_ranking, on average",
        "wanted": f"{wanted:g} at least",
        "found": found,
        "where": "",
        "holds_in": None,
        "holds": found >= wanted,
    }


def _bounds(document: Mapping[str, Any]) -> dict[str, Any]:
    faster = {f"{one['model']} on {one['cluster']}": one["num_faster"] for one in document["bounds"]}
    return {
        "what": "exact trials faster than their bound, interval and all",
        "wanted": "none",
        "found": sum(faster.values()),
        "where": ", ".join(where for where, count in faster.items() if count),
        "holds_in": [sum(not count for count in faster.values()), len(faster)],
        "holds": not any(faster.values()),
    }
