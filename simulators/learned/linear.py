"""`linear`: a linear ranker over twelve features, like that of the original AutoSync, for comparison.

The features come from three figures: the time on the wire, a count of messages and a count of ranks on a node. Each is
taken over all parameter servers and over all groups of all-reduce, both as the sum and as the largest. The features
know nothing of compute, overlap, order or contention. Servers answer one worker after the other, and an all-reduce
sends its bytes once. Other synchronisers count as all-reduce. The ranker is trained on pairs whose measurements are not
ties.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autosync.errors import InputError
from autosync.simulators.features.choices import complexity
from autosync.simulators.features.context import scales_of
from autosync.simulators.learned import files
from autosync.simulators.learned.losses import Targets
from autosync.simulators.learned.trials import TrialGroup, joined
from autosync.simulators.shared.arrays import Floats
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ITEM_BYTES, ModelSpec
from autosync.strategy import legality
from autosync.strategy.parts import Part
from autosync.strategy.representation import Message, Strategy, all_parts

NAMES = tuple(
    f"{how}.{what}.{which}"
    for what, how, which in itertools.product(
        ("server", "all_reduce"), ("max", "sum"), ("transmission", "overhead", "latency")
    )
)
_MAX_PAIRS = 20000
_FEWEST_PAIRS = 3


class LinearRows(NamedTuple):
    """The twelve features, a row for each strategy, with seconds as shares of the bound, and the bound itself."""

    values: Floats
    bound: Floats
    complexity: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearModel:
    """The coefficients of the score, and the line that converts the score to the log of seconds, in bounds."""

    coefficients: Floats
    offset: float
    slope: float

    def predict(self, rows: LinearRows) -> tuple[Floats, Floats]:
        """Return the log of the seconds of each row. It does not know its uncertainty, so that is 0."""
        score = rows.values @ self.coefficients
        return np.log(rows.bound) + self.offset + self.slope * score, np.zeros(len(score))


def _untaught() -> LinearModel:
    """Return the model without training: the time of the busiest server plus that of everything all-reduced."""
    coefficients = np.zeros(len(NAMES))
    coefficients[[NAMES.index("max.server.transmission"), NAMES.index("sum.all_reduce.transmission")]] = 1.0
    return LinearModel(coefficients=coefficients, offset=0.0, slope=0.3)


UNTAUGHT = _untaught()


class LinearStudent:
    """Learns the twelve coefficients of `linear`."""

    name = "linear"

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, *, prior: LinearModel = UNTAUGHT) -> None:
        self._model = model
        self._cluster = cluster
        self._prior = prior
        self._bound = scales_of(model, cluster).bound

    def read(self, strategies: Sequence[Strategy]) -> LinearRows:
        """Return strategies as rows, in their order."""
        values = [self._features(strategy) for strategy in strategies]
        return LinearRows(
            values=np.array(values, dtype=np.float64).reshape(len(values), len(NAMES)),
            bound=np.full(len(values), self._bound),
            complexity=np.array([complexity(strategy) for strategy in strategies]),
        )

    def complexity(self, rows: LinearRows) -> Floats:
        """Return the complexity of each strategy."""
        return rows.complexity

    def taught(self, rows: LinearRows, targets: Targets) -> LinearModel:
        """Return the model fitted to these trials; with few trials it stays near the prior."""
        return fit(rows, targets, prior=self._prior)

    def _features(self, strategy: Strategy) -> list[float]:
        try:
            parts = all_parts(strategy, self._model)
            costs = [(message, self._costs(message, parts)) for message in strategy.messages]
        except KeyError:
            legality.check(strategy, self._model, self._cluster)
            raise
        servers: dict[str, Floats] = {}
        groups: list[Floats] = []
        for message, cost in costs:
            server = message.synchroniser.served_by
            if server is not None:
                servers[server] = servers.get(server, np.zeros(3)) + cost
            else:
                groups.append(cost)
        found: list[float] = []
        for of_kind in (list(servers.values()), groups):
            each = np.array(of_kind).reshape(len(of_kind), 3)
            found += [*each.max(axis=0, initial=0.0).tolist(), *each.sum(axis=0).tolist()]
        return [round(number, 7) for number in found]

    def _costs(self, message: Message, parts: Mapping[str, Part]) -> Floats:
        """Return a message's transmission, overhead and latency: the sums that the original makes over variables."""
        workers = [node for node in self._cluster.nodes if node.role == "worker"]
        replicas = max(node.devices for node in workers)
        synchroniser = message.synchroniser
        count = len(message.parts)
        if synchroniser.served_by is None:
            rate = min(min(node.bandwidth_out, node.bandwidth_in) for node in workers)
            size = sum(parts[name].num_bytes for name in message.parts)
            return np.array([size / rate / self._bound, count, count * replicas])
        server = self._cluster.nodes[self._cluster.node_index(synchroniser.served_by)]
        seconds = 0.0
        for node in workers:
            if node.name != server.name:
                rate = min(node.bandwidth_out, node.bandwidth_in, server.bandwidth_out, server.bandwidth_in)
                answers = 1 if synchroniser.has_proxies else node.devices
                seconds += sum(_server_bytes(parts[name], synchroniser.sends_rows) for name in message.parts) * (
                    (1 + answers) / rate
                )
        return np.array([seconds / self._bound, 2 * count * len(workers), 2 * count * replicas])


def fit(rows: LinearRows, targets: Targets, *, prior: LinearModel = UNTAUGHT) -> LinearModel:
    """Return the model that orders these rows best. The prior's score is one of its inputs."""
    wanted = targets.log_seconds - np.log(rows.bound)
    coefficients = _ordering(rows.values, targets, prior.coefficients)
    if coefficients is None:
        shift = wanted - prior.offset - prior.slope * (rows.values @ prior.coefficients)
        return LinearModel(
            coefficients=prior.coefficients,
            offset=prior.offset + (float(np.median(shift)) if len(shift) else 0.0),
            slope=prior.slope,
        )
    score = rows.values @ coefficients
    slope = max(1e-6, float(np.cov(score, wanted)[0, 1] / max(1e-12, float(np.var(score, ddof=1)))))
    return LinearModel(coefficients=coefficients, offset=float(np.median(wanted - slope * score)), slope=slope)


def _ordering(values: Floats, targets: Targets, prior: Floats) -> Floats | None:
    """Return coefficients by logistic regression on the differences of pairs; None if there are too few pairs."""
    from sklearn.linear_model import LogisticRegression

    differences = _differences(values, targets)
    if len(differences) < _FEWEST_PAIRS:
        return None
    table = np.concatenate((differences, (differences @ prior)[:, None]), axis=1)
    scale = np.sqrt(np.mean(table**2, axis=0))
    scale[scale < 1e-12] = np.inf
    # Every other pair is reversed, because a classifier needs two classes.
    signs = np.where(np.arange(len(table)) % 2, 1, -1)
    model = LogisticRegression(fit_intercept=False, C=1.0, max_iter=500)
    model.fit(table / scale * signs[:, None], signs)
    found = model.coef_[0] / scale
    coefficients: Floats = found[:-1] + found[-1] * prior
    return coefficients


def _differences(values: Floats, targets: Targets) -> Floats:
    """Return the slower strategy's features minus the faster one's, for pairs of a group that are not ties."""
    apart = targets.log_high[:, None] < targets.log_low[None, :]
    faster, slower = np.nonzero(apart & (targets.group[:, None] == targets.group[None, :]))
    if len(faster) > _MAX_PAIRS:
        chosen = np.random.default_rng(0).choice(len(faster), _MAX_PAIRS, replace=False)
        faster, slower = faster[chosen], slower[chosen]
    found: Floats = values[slower] - values[faster]
    return found


def _server_bytes(part: Part, is_sparse: bool) -> float:  # noqa: FBT001 - a field of the synchroniser, handed on
    if not is_sparse:
        return float(part.num_bytes)
    return part.touched_rows()[0] * part.shape[1] * ITEM_BYTES[part.variable.dtype]


def line_of(groups: Sequence[TrialGroup[LinearRows]]) -> LinearModel:
    """Return a prior that learned from groups of other models and clusters."""
    if not groups:
        return UNTAUGHT
    targets = Targets(
        *(np.concatenate(columns) for columns in zip(*_numbered([group.targets for group in groups]), strict=True))
    )
    return fit(joined([group.rows for group in groups]), targets)


def _numbered(targets: Sequence[Targets]) -> list[Targets]:
    return [one._replace(group=np.full_like(one.group, number)) for number, one in enumerate(targets)]


def save_line(
    folder: Path | str, line: LinearModel, *, trained_on: files.TrainedOn, accuracy: Mapping[str, float]
) -> None:
    """Write a prior; the manifest contains all of it."""
    numbers = {"coefficients": line.coefficients.tolist(), "offset": [line.offset], "slope": [line.slope]}
    manifest = files.manifest_of(
        "linear", features=NAMES, numbers=numbers, trained_on=trained_on, accuracy=accuracy, rehearsal=(), contents={}
    )
    files.save(folder, manifest, {})


def load_line(folder: Path | str) -> LinearModel:
    """Return a saved prior."""
    manifest = files.load_manifest(folder, "linear")
    try:
        return _line_in(manifest)
    except InputError as error:
        raise files.refused(Path(folder) / files.MANIFEST_FILE, error) from error


def _line_in(manifest: files.Manifest) -> LinearModel:
    if manifest.features != NAMES:
        raise InputError("it was trained on other features", rule="the twelve features, in their order")
    (offset,), (slope,) = manifest.number("offset"), manifest.number("slope")
    if slope <= 0:
        raise InputError(f"the slope is {slope}", rule="a higher score is a longer time: above 0")
    return LinearModel(coefficients=np.array(manifest.number("coefficients", len(NAMES))), offset=offset, slope=slope)
