"""Compares predictions with step times that others published.

    python benchmarks/published/published.py > published.json
    python benchmarks/published/published.py --tables OTHER.json --sources OTHER.yaml

Each point of a table is a model that a known system trained on a cluster of GPUs. Its compute takes what one device
took by the same source, its strategy is the preset that comes closest to the system, and its costs are a shipped
profile: that of NCCL for all-reduces, `servers-cpu` for servers. Sources claim the rates of links, but a connection is
often slower. So each cluster is given one rate, with which one of its cells is predicted as published. That cell is
left out; all others are judged.

Bounds: a median error of 10 % for all-reduces and 25 % for servers; Kendall's tau of 0.7 over pairs of a cell that are
further apart than their readings may be off, in tables that compare strategies; in 80 % of the cells, the predicted
fastest is within 5 % of the published fastest. Ends with 1 if a bound is missed, or if no figure is known.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autosync import units

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.published.figures import (
    Judged,
    cells_of,
    kendall_tau,
    median_error,
    near_picks,
    picked_slowdown,
)
from benchmarks.published.points import HERE, Case, Table, cases_of, read_points, read_tables, table_of
from benchmarks.published.rates import measured_rate, predicted_seconds
from benchmarks.shared import parser_of, report, run, tell

MOST_ALL_REDUCE_ERROR = 0.10
MOST_SERVER_ERROR = 0.25
LEAST_TAU = 0.7
LEAST_NEAR_PICKS = 0.8


def main() -> int:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--tables", type=Path, default=HERE / "tables.json", help="the points, in the README's form")
    parser.add_argument("--sources", type=Path, default=HERE / "sources.yaml", help="what is known of the tables")
    options = parser.parse_args()
    cases = cases_of(read_points(options.tables))
    known = read_tables(options.sources)
    tables = {case.point.table: known.get(case.point.table) or table_of() for case in cases}
    rates, judged = _judge(cases)
    document = _document(judged, tables, rates)
    return report(document, holds=document["holds"])


def _judge(cases: Sequence[Case]) -> tuple[list[dict[str, Any]], list[Judged]]:
    """Return the rates of the clusters, and the predictions of all cases that did not give a rate."""
    machines: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for case in cases:
        machines[case.point.machine].append(case)
    rates, judged = [], []
    for some in machines.values():
        measured = measured_rate(some)
        cells = sorted({case.point.cell for case in measured.given_by})
        told = units.format_rate(measured.rate)
        tell(f"table {some[0].point.table}: a connection has {told}, by {', '.join(cells)}")
        rates.append({"table": some[0].point.table, "rate": told, "given_by": cells})
        judged += [
            Judged(case=case, predicted=predicted_seconds(case, measured.rate))
            for case in some
            if case not in measured.given_by
        ]
        tell(f"table {some[0].point.table}: {len(some) - len(measured.given_by)} points predicted")
    return rates, judged


def _document(judged: Sequence[Judged], tables: Mapping[str, Table], rates: list[dict[str, Any]]) -> dict[str, Any]:
    all_reduce, servers = median_error(judged, "all-reduce"), median_error(judged, "servers")
    tau, num_pairs = kendall_tau(judged, tables)
    picks, num_cells = near_picks(judged)
    bounds = [
        _bound("median_error_all_reduce", all_reduce, MOST_ALL_REDUCE_ERROR, is_most=True),
        _bound("median_error_servers", servers, MOST_SERVER_ERROR, is_most=True),
        _bound("kendall_tau", tau, LEAST_TAU, is_most=False),
        _bound("near_picks", picks, LEAST_NEAR_PICKS, is_most=False),
    ]
    return {
        "holds": holds_of(bounds),
        "bounds": bounds,
        "points": len(judged),
        "pairs": num_pairs,
        "cells": num_cells,
        "rates": rates,
        "tables": {name: _of_table(name, judged, tables) for name in sorted(tables)},
        "predictions": [_row(one) for one in judged],
    }


def _bound(name: str, value: float | None, bound: float, *, is_most: bool) -> dict[str, Any]:
    """Return a figure beside its bound; `holds` is None if no point tells of it."""
    holds = None if value is None else (value <= bound if is_most else value >= bound)
    return {"figure": name, "value": _rounded(value), "bound": bound, "holds": holds}


def holds_of(bounds: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether no figure misses its bound, and at least one is known."""
    known = [one["holds"] for one in bounds if one["holds"] is not None]
    return bool(known) and all(known)


def _of_table(name: str, judged: Sequence[Judged], tables: Mapping[str, Table]) -> dict[str, Any]:
    ours = [one for one in judged if one.case.point.table == name]
    return {
        "points": len(ours),
        "median_error_all_reduce": _rounded(median_error(ours, "all-reduce")),
        "median_error_servers": _rounded(median_error(ours, "servers")),
        "kendall_tau": _rounded(kendall_tau(ours, tables)[0]),
        "near_picks": _rounded(near_picks(ours)[0]),
        "picks": {cell[0].case.point.cell: _rounded(picked_slowdown(cell)) for cell in cells_of(ours) if len(cell) > 1},
    }


def _row(one: Judged) -> dict[str, Any]:
    point = one.case.point
    return {
        "table": point.table,
        "cell": point.cell,
        "system": point.system,
        "preset": point.preset,
        "published_ms": _rounded(point.seconds * 1e3),
        "predicted_ms": _rounded(one.predicted * 1e3),
        "error": _rounded(one.error),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


if __name__ == "__main__":
    run(main)
