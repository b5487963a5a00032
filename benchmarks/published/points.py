"""Points of published tables: a model that a system trained on a cluster, and the step time that was published."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from autosync import documents
from autosync.errors import InputError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import parse_cluster
from autosync.specs.cost_profiles import CostChoice, cost_profile
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy

HERE = Path(__file__).parent
NUM_LANES = 8
"""The lanes of servers, as many as `servers-cpu` has cores."""

Family = Literal["all-reduce", "servers"]

_UNKNOWN_TABLE: Mapping[str, Any] = {"reading_error": 0.03, "compares": "strategies"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What is known of a table: by how much a reading may be off, and whether it compares strategies."""

    reading_error: float
    compares_strategies: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point. `claimed` is the cluster with the rates that its source claims."""

    table: str
    cell: str
    system: str
    model: str
    preset: str
    options: Mapping[str, Any]
    batch: int
    compute_seconds: float
    seconds: float
    claimed: ClusterSpec

    @property
    def machine(self) -> tuple[object, ...]:
        """What all clusters of a table that differ only in their number of nodes have in common."""
        nodes = {(node.role, node.devices, node.bandwidth_out, node.bandwidth_in) for node in self.claimed.nodes}
        return (self.table, *sorted(nodes))

    @property
    def where(self) -> tuple[str, str]:
        return self.table, self.cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A point ready to be predicted: its strategy, and its family."""

    point: Point
    model: ModelSpec
    strategy: Strategy
    family: Family

    def cluster(self, rate: float) -> ClusterSpec:
        """Return the cluster with the costs of the family, where one connection between nodes has a measured rate.

        All-reduces are NCCL's, whose profile follows from the links within nodes. Servers are processes on the nodes'
        processors, whose connections may be slower than the rate by their profile.
        """
        if self.family == "all-reduce":
            return replace(self.point.claimed, backend="nccl", costs=CostChoice(figures=(("flow_limit", rate),)))
        most = cost_profile("servers-cpu").costs.flow_limit or rate
        return replace(
            self.point.claimed, costs=CostChoice(profile="servers-cpu", figures=(("flow_limit", min(rate, most)),))
        )


def read_points(path: Path) -> list[Point]:
    """Return the points of a file of tables."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [_point(row, f"{path}[{number}]") for number, row in enumerate(rows)]


def read_tables(path: Path) -> dict[str, Table]:
    """Return what is known of tables, by name."""
    found = documents.read_document(path).value
    return {name: table_of(fields) for name, fields in found.items()}


def table_of(fields: Mapping[str, Any] | None = None) -> Table:
    """Return a table from its fields; one that nothing is known of was read by eye and compares strategies."""
    known = {**_UNKNOWN_TABLE, **(fields or {})}
    return Table(reading_error=float(known["reading_error"]), compares_strategies=known["compares"] == "strategies")


def cases_of(points: Sequence[Point]) -> list[Case]:
    """Return the cases of points, in their order."""
    return [_case(point) for point in points]


def _point(row: Mapping[str, Any], place: str) -> Point:
    try:
        return Point(
            table=row["table"],
            cell=row["cell"],
            system=row["system"],
            model=row["model"],
            preset=row["preset"],
            options=row["opts"],
            batch=int(row["batch"]),
            compute_seconds=float(row["compute"]),
            seconds=float(row["batch"]) / float(row["pub"]),
            claimed=parse_cluster(documents.parse_document(row["cluster"], file=f"{place}.cluster")),
        )
    except KeyError as error:
        raise InputError(f"{place}: {error} is missing", rule="a point has all keys of the README") from None


def _case(point: Point) -> Case:
    model = _model(point)
    # Presets are the same for both backends; servers are not legal on NCCL.
    strategy = build_preset(point.preset, model, point.claimed, **point.options)
    serves = any(message.synchroniser.served_by is not None for message in strategy.messages)
    if serves:
        # Servers of these systems work on all variables at a time, in any order: each lane has an order of its own.
        messages = [replace(one, lane=number % NUM_LANES) for number, one in enumerate(strategy.messages)]
        strategy = replace(strategy, messages=tuple(messages))
    return Case(point=point, model=model, strategy=strategy, family="servers" if serves else "all-reduce")


@functools.cache
def _spec(name: str) -> ModelSpec:
    own = HERE / "models" / f"{name}.yaml"
    return load_model(str(own) if own.is_file() else name)


def _model(point: Point) -> ModelSpec:
    """Return the model with the published time of a step on one device."""
    model = _spec(point.model)
    factor = point.compute_seconds / model.step_seconds
    return replace(model, batch_size=point.batch, timeline=model.timeline.paced(passes=factor, update=factor))
