"""The trial service: ranks start once and take one contestant after another.

    with TrialService(target=..., model=..., cluster=..., folder=...) as service:
        service.prepare(contestant)
        service.run(contestant.name, 4)
        samples = service.run(contestant.name, 12)
        service.release(contestant.name)

Several contestants may be prepared at once and take turns. Between trials everything goes back to the start, and where
a trial ends badly the ranks end with it: the next `prepare` has fresh ones.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from autosync.disk_errors import is_full
from autosync.errors import AutosyncError, OperationError
from autosync.launchers.control_address import RELAYED
from autosync.launchers.node_check import require_fit_nodes
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import dump_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import dump_model
from autosync.specs.task_file import is_task, task_path
from autosync.strategy.bundle import Bundle, load_bundle
from autosync.strategy.files import dump_strategy
from autosync.trials.contestant import Contestant
from autosync.trials.failures import TrialFailed
from autosync.trials.ranks import START_SECONDS, Answer, Ranks, plan_launch

__all__ = ["Contestant", "StepSamples", "TrialFailed", "TrialService"]

BACKSTOP_SECONDS = 30.0
"""How much longer than the service the ranks wait for one another: it is the service that says who is late."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSamples:
    """Some steps of one contestant.

    `step_seconds` has a row for each worker, as all figures of ranks have: workers take steps. `cpu_share` is the share
    of the machine's processor time that anything used meanwhile (of several machines the busiest). `bytes_sent` and
    `bytes_received` are those of all the steps over the link of each rank's node, which ranks of one node have in
    common; None where they cannot be told from others'. What went over the links of nodes that only serve stands in
    `server_bytes_sent` and `server_bytes_received`, by rank. `peak_memory_bytes` is each rank's since the last
    `prepare` (since its start where the system does not reset it). `losses` are those of the steps.
    """

    step_seconds: tuple[tuple[float, ...], ...]
    cpu_share: float
    bytes_sent: tuple[int, ...] | None
    bytes_received: tuple[int, ...] | None
    peak_memory_bytes: tuple[int, ...]
    server_bytes_sent: tuple[int, ...] | None = ()
    server_bytes_received: tuple[int, ...] | None = ()
    losses: tuple[tuple[float, ...], ...] = ()


class TrialService:
    """Runs contestants on the ranks of a cluster. Leave it, or `close` it, and nothing is left.

    One thread uses it from first to last: where that ends, whatever way, the system ends the ranks that it started.

    `target` is a task (`FILE.py[:NAME]`), which the ranks load once; anything else names a model spec, of which `model`
    is replayed. `prepare` and `run` raise TrialFailed, each after `timeout_seconds` at the latest; starting ranks has a
    limit of its own. After a failure no contestant is prepared any more.
    """

    def __init__(
        self,
        *,
        target: str,
        model: ModelSpec,
        cluster: ClusterSpec,
        folder: Path,
        seed: int = 0,
        timeout_seconds: float = 120.0,
    ) -> None:
        # Refuses a cluster that cannot be started before anything is.
        self._launcher, _ = plan_launch(cluster, folder)
        self._target = target
        self.model = model
        self.cluster = cluster
        self._folder = folder
        self._seed = seed
        self._timeout_seconds = timeout_seconds
        self._ranks: Ranks | None = None
        self._num_generations = 0
        self._prepared: set[str] = set()
        self._ended_by: dict[str, TrialFailed] = {}
        self._held = contextlib.ExitStack()
        self._is_held = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def prepare(self, contestant: Contestant) -> None:
        """Build a contestant's model and optimizer on every rank, starting the ranks where none are running."""
        if contestant.name in self._prepared:
            raise OperationError(f"{contestant.name} is prepared already: release it first")
        fields = self._fields(contestant)
        if self._ranks is not None and not self._prepared and not self._ranks.are_well:
            _LOG.warning("a rank has ended between two trials: starting all anew")
            self._end_ranks()
        if self._ranks is None:
            self._start_ranks()
        self._ask("prepare", fields)
        self._prepared.add(contestant.name)
        self._ended_by.pop(contestant.name, None)

    def run(self, name: str, num_steps: int, *, settle: bool = False) -> StepSamples:
        """That many steps of a prepared contestant, on all ranks together; with `settle` until all is at rest."""
        self._check_prepared(name)
        all_answers = self._ask("run", {"name": name, "num_steps": num_steps, "settle": settle})
        answers, servers = all_answers[: self.cluster.num_workers], all_answers[self.cluster.num_workers :]
        return StepSamples(
            step_seconds=tuple(tuple(answer["step_seconds"]) for answer in answers),
            losses=tuple(tuple(map(_loss, answer["losses"])) for answer in answers),
            cpu_share=max(answer["cpu_share"] for answer in all_answers),
            bytes_sent=_counts(answers, "bytes_sent"),
            bytes_received=_counts(answers, "bytes_received"),
            peak_memory_bytes=tuple(answer["peak_memory_bytes"] for answer in answers),
            server_bytes_sent=_counts(servers, "bytes_sent"),
            server_bytes_received=_counts(servers, "bytes_received"),
        )

    def difference(self, first: str, second: str) -> float:
        """How far the parameters of two prepared contestants are apart, as a share of how far the first's have come.

        Of all ranks the largest; infinite where some number is none.
        """
        for name in (first, second):
            self._check_prepared(name)
        answers = self._ask("difference", {"names": [first, second]})
        found = [answer["difference"] for answer in answers]
        return max((math.inf if share is None else share for share in found), default=math.inf)

    def release(self, name: str) -> None:
        """Be rid of a contestant: its model, optimizer, process groups and memory. Harmless after a failure.

        If a rank fails in this, the ranks are ended: the trial is over, and others that are prepared hear of it.
        """
        if name not in self._prepared:
            return
        self._prepared.remove(name)
        try:
            self._ask("release", {"name": name})
        except TrialFailed as failure:
            _LOG.warning("the ranks are ended: releasing %s failed: %s", name, failure.message)

    def close(self) -> None:
        """End the ranks and whatever they needed. Harmless when repeated."""
        try:
            self._end_ranks()
        finally:
            self._is_held = False
            self._held.close()

    def _fields(self, contestant: Contestant) -> Mapping[str, Any]:
        """What the ranks must know of a contestant. They have model and cluster, which must be the bundle's."""
        common = {
            "name": contestant.name,
            "ddp": contestant.ddp.to_plain(),
            "plain_sgd": contestant.plain_sgd,
            "trace": None if contestant.trace is None else str(contestant.trace.resolve()),
        }
        if contestant.bundle is None:
            return {**common, "strategy": None}
        try:
            bundle = contestant.bundle if isinstance(contestant.bundle, Bundle) else load_bundle(contestant.bundle)
            bundle.check(self.model, self.cluster)
        except AutosyncError as error:
            raise TrialFailed("refused", str(error)) from error
        return {
            **common,
            "strategy": dump_strategy(bundle.strategy),
            "strategy_id": bundle.strategy_id,
            "plan_id": bundle.plan_id,
        }

    def _check_prepared(self, name: str) -> None:
        if name in self._prepared:
            return
        failure = self._ended_by.get(name)
        if failure is None:
            raise OperationError(f"{name} is not prepared")
        message = f"the ranks that had {name} prepared were ended: {failure.message}"
        raise TrialFailed(failure.kind, message, blame=failure.blame)

    def _start_ranks(self) -> None:
        if not self._is_held:
            self._held.enter_context(self._launcher.hold(self.cluster))
            self._is_held = True
        self._num_generations += 1
        folder = self._folder / f"ranks-{self._num_generations}"
        while folder.exists():
            folder = self._folder / f"ranks-{self._num_generations}-{secrets.token_hex(4)}"
        folder.mkdir(parents=True)
        if is_full(folder):
            raise TrialFailed("launch", f"the disk of {folder} is full: ranks have no room for their logs")
        try:
            self._require_fit_nodes(folder)
            self._ranks = Ranks(self.cluster, folder)
            self._join(self._ranks)
        except OperationError as error:
            # No rank has heard of a strategy yet: whatever this is, it is none of any strategy's.
            raise TrialFailed("launch", str(error)) from error

    def _join(self, ranks: Ranks) -> None:
        with self._ended_by_failures():
            rendezvous = ranks.meeting_point()
        self._ask(
            "join",
            {
                "target": self._target,
                "model": dump_model(self.model),
                "cluster": dump_cluster(self.cluster),
                "rendezvous": rendezvous,
                "seed": self._seed,
                "timeout_seconds": self._timeout_seconds + BACKSTOP_SECONDS,
            },
            seconds=START_SECONDS,
        )

    def _require_fit_nodes(self, folder: Path) -> None:
        """Where ranks run on other machines: a node that is lost or unfit ends all, not one trial after the other."""
        if self._launcher.control == RELAYED:
            require_fit_nodes(self.cluster, folder, files=[task_path(self._target)] if is_task(self._target) else [])

    def _ask(self, request: str, fields: Mapping[str, Any], *, seconds: float | None = None) -> Sequence[Answer]:
        """Ask all ranks."""
        assert self._ranks is not None, "ranks are started before they are asked"
        with self._ended_by_failures():
            return self._ranks.ask(request, fields, seconds or self._timeout_seconds)

    @contextlib.contextmanager
    def _ended_by_failures(self) -> Iterator[None]:
        """Whatever goes wrong, an interruption among it, ends the ranks."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, TrialFailed):
                if error.kind != "refused" and is_full(self._folder):
                    # However it showed: a rank that cannot write its log, say.
                    error.blame = "machines"
                self._ended_by.update(dict.fromkeys(self._prepared, error))
            self._end_ranks()
            raise

    def _end_ranks(self) -> None:
        ranks, self._ranks = self._ranks, None
        self._prepared.clear()
        if ranks is not None:
            ranks.end()


def _loss(value: float | None) -> float:
    """What is no number any more comes as None."""
    return math.nan if value is None else value


def _counts(answers: Sequence[Answer], key: str) -> tuple[int, ...] | None:
    found = [answer[key] for answer in answers]
    return None if None in found else tuple(found)
