"""The measured errors of predictions, from which intervals are computed.

Each error is the logarithm of a measured step time over the predicted one. The predictions used no trial of the model
on the cluster. `tools/measure_prediction_errors.py` measures the errors on the shipped records and writes the shipped
file. Errors are valid only for the simulators that made the predictions. So the file also holds the predictions of
these simulators for two small cases (`simulators.learned.rehearsal`). If today's simulators predict other times for
them, the errors are not used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

from autosync import documents
from autosync.documents import STRICT
from autosync.specs.cluster import ClusterSpec

SCHEMA_KIND = "prediction-errors"
SCHEMA_VERSION = 1

Subject = Literal["stock DDP", "fastest"]
"""The subject of a prediction: stock DDP, or strategies chosen because their predicted times are the shortest."""

LEVEL = 0.9
"""The share of measurements that an interval should contain."""

_DIGITS = 5


class Ends(NamedTuple):
    """The ends of an interval around a prediction, as logarithms of measured over predicted seconds."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGroup:
    """The errors of one simulator, either on clusters with equal links or on all other clusters."""

    __pydantic_config__ = STRICT

    simulator: str
    subject: Subject
    equal_links: bool
    errors: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredErrors:
    """All measured errors, and the range of the clusters on which they were measured.

    `rehearsed` holds the predictions for two small cases by the simulators whose errors were measured.
    """

    __pydantic_config__ = STRICT

    rehearsed: tuple[float, ...]
    backend: str
    min_nodes: int
    max_nodes: int
    min_rate: float
    max_rate: float
    groups: tuple[ErrorGroup, ...]

    def ends(self, simulator: str, subject: Subject, cluster: ClusterSpec) -> Ends | None:
        """Return the interval of a simulator's predictions on a cluster; None if too few errors were measured.

        Clusters with equal links have their own interval if enough errors were measured on such clusters.
        """
        known = [one for one in self.groups if (one.simulator, one.subject) == (simulator, subject)]
        alike = [error for one in known if one.equal_links == has_equal_links(cluster) for error in one.errors]
        return ends_of(alike) or ends_of([error for one in known for error in one.errors])

    def beyond(self, cluster: ClusterSpec) -> list[str]:
        """Return the differences between a cluster and all clusters on which errors were measured; empty if none."""
        from autosync.units import format_rate

        workers = [node for node in cluster.nodes if node.role == "worker"]
        rates = [rate for node in workers for rate in (node.bandwidth_out, node.bandwidth_in)]
        measured_rates = f"{format_rate(self.min_rate)} to {format_rate(self.max_rate)}"
        checks = [
            (len(workers) > self.max_nodes, f"more than {self.max_nodes} nodes"),
            (len(workers) < self.min_nodes, f"fewer than {self.min_nodes} nodes"),
            (max(rates) > self.max_rate or min(rates) < self.min_rate, f"links outside {measured_rates}"),
            (cluster.backend != self.backend, f"backend {cluster.backend}"),
            (not cluster.is_emulated, "nodes that are not emulated"),
        ]
        return [words for is_beyond, words in checks if is_beyond]


def has_equal_links(cluster: ClusterSpec) -> bool:
    """Return whether all nodes train and have the same links, outside racks."""
    rates = {rate for node in cluster.nodes for rate in (node.bandwidth_out, node.bandwidth_in)}
    return len(rates) == 1 and not cluster.racks and all(node.role == "worker" for node in cluster.nodes)


def ends_of(errors: Sequence[float], level: float = LEVEL) -> Ends | None:
    """Return an interval that contains at least the share `level` of further errors; None if there are too few errors.

    Its ends are two of the errors. A further error from the same source falls with equal probability at each position
    among the sorted errors, so the interval contains it with probability `level` (split conformal prediction).
    """
    ordered = sorted(errors)
    outside = (1 - level) / 2 * (len(ordered) + 1)
    # 19 errors suffice for 90 %, and rounding must not make them too few.
    position = math.floor(outside + 1e-9)
    return Ends(ordered[position - 1], ordered[-position]) if position else None


def measured_errors() -> MeasuredErrors | None:
    """Return the shipped errors; None if the simulators predict otherwise today."""
    # Imported here, because the check loads the simulators to predict two small cases.
    from autosync.errors import InputError
    from autosync.simulators.learned.rehearsal import check_rehearsal

    found = shipped_errors()
    try:
        check_rehearsal(found.rehearsed)
    except InputError:
        return None
    return found


@functools.cache
def shipped_errors() -> MeasuredErrors:
    """Return the shipped errors, whatever the simulators predict today."""
    return documents.load(shipped_file(), kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=MeasuredErrors)[0]


def shipped_file() -> Path:
    """Return the file of the shipped errors, beside the shipped records."""
    return Path(str(resources.files("autosync.datasets"))) / "prediction_errors.json"


def write_errors(path: Path, errors: MeasuredErrors) -> None:
    """Write errors to a file."""
    documents.write(path, documents.dump(errors, kind=SCHEMA_KIND, version=SCHEMA_VERSION))


def rounded(errors: Sequence[float]) -> tuple[float, ...]:
    """Return the errors sorted and rounded to significant digits."""
    return tuple(sorted(round(error, _DIGITS) for error in errors))
