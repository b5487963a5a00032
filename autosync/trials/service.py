"""The trial service: ranks start once and take one contestant after another.

    with TrialService(target=..., model=..., cluster=..., folder=...) as service:
        service.prepare(contestant)
        service.run(contestant.name, 4)
        samples = service.run(contestant.name, 12)
        service.release(contestant.name)

Several contestants may be prepared at once and take turns. No state is kept between trials. If a trial fails, its ranks
are ended, and the next `prepare` starts new ranks.
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
from autosync.errors import AutosyncError, InputError, OperationError
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
from autosync.trials.measured_inputs import Answers, inputs_of
from autosync.trials.ranks import START_SECONDS, Answer, Ranks, plan_launch

__all__ = ["Contestant", "StepSamples", "TrialFailed", "TrialService"]

BACKSTOP_SECONDS = 30.0
"""The time that ranks wait for one another longer than the service does, so that the service finds the late rank."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSamples:
    """The samples of some steps of one contestant.

    Figures of ranks, such as `step_seconds`, have a row for each worker. `cpu_share` is the used share of the machine's
    processor time during the steps (of the busiest one, if there are several machines). `bytes_sent` and
    `bytes_received` are the bytes of all the steps over the link of each rank's node, which the ranks of a node share;
    None if they cannot be told from other bytes. `server_bytes_sent` and `server_bytes_received` are the bytes over the
    links of server-only nodes, by rank. `peak_memory_bytes` is each rank's peak since the last `prepare` (since its
    start if the system cannot reset it). `losses` are the losses of the steps, `inputs` sums about the ranks' input.
    """

    step_seconds: tuple[tuple[float, ...], ...]
    cpu_share: float
    bytes_sent: tuple[int, ...] | None
    bytes_received: tuple[int, ...] | None
    peak_memory_bytes: tuple[int, ...]
    server_bytes_sent: tuple[int, ...] | None = ()
    server_bytes_received: tuple[int, ...] | None = ()
    losses: tuple[tuple[float, ...], ...] = ()
    inputs: Answers | None = None


class TrialService:
    """Runs contestants on the ranks of a cluster. `close`, or the end of its `with` block, ends the ranks.

    Only one thread may use it; when that thread ends, for any reason, the system ends the ranks that it started.

    `target` is a task (`FILE.py[:NAME]`), which the ranks load once; if it names a model spec, `model` is replayed.
    `prepare` and `run` raise TrialFailed, each after `timeout_seconds` at the latest; the start of ranks has another
    limit. After a failure no contestant is prepared any more.
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
        if cluster.device_type == "cuda" and not is_task(target):
            raise InputError(
                f"{target}: a model spec cannot be tried on GPUs",
                rule="ranks replay a spec on the CPU, and the cluster's backend is nccl",
                hint="give the task: FILE.py or FILE.py:NAME",
            )
        # This refuses a cluster that cannot be started before anything is started.
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

    def prepare(self, contestant: Contestant) -> int:
        """Build a contestant's model and optimizer on every rank; start the ranks if none are running.

        Return the number of steps after which all workers of its loader have given equally many batches (see periods);
        0 if no loader gives it batches.
        """
        if contestant.name in self._prepared:
            raise OperationError(f"{contestant.name} is prepared already: release it first")
        fields = self._fields(contestant)
        if self._ranks is not None and not self._prepared and not self._ranks.are_well:
            _LOG.warning("a rank has ended between two trials: starting all anew")
            self._end_ranks()
        if self._ranks is None:
            self._start_ranks()
        answers = self._ask("prepare", fields)
        self._prepared.add(contestant.name)
        self._ended_by.pop(contestant.name, None)
        return max(int(answer.get("num_turn_steps", 0)) for answer in answers)

    def run(self, name: str, num_steps: int, *, settle: bool = False) -> StepSamples:
        """Run `num_steps` steps of a prepared contestant on all ranks; with `settle`, also finish all its transfers."""
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
            inputs=inputs_of(answers),
        )

    def difference(self, first: str, second: str) -> float:
        """Return the distance between the parameters of two prepared contestants, as a share of the first's progress.

        Its progress is the distance from its first parameters. The largest share of all ranks counts; it is infinite if
        a parameter is not finite.
        """
        for name in (first, second):
            self._check_prepared(name)
        answers = self._ask("difference", {"names": [first, second]})
        found = [answer["difference"] for answer in answers]
        return max((math.inf if share is None else share for share in found), default=math.inf)

    def timeline(self, name: str) -> str:
        """Return the timeline of a prepared contestant with `trace` on the first rank, and remove the files of all."""
        self._check_prepared(name)
        timeline: str = self._ask("timeline", {"name": name})[0]["timeline"]
        return timeline

    def release(self, name: str) -> None:
        """Remove a contestant with its model, optimizer, process groups and memory. Harmless after a failure.

        If this fails on a rank, all ranks are ended, but no error is raised, because the trial is over; the next call
        for another prepared contestant raises it.
        """
        if name not in self._prepared:
            return
        self._prepared.remove(name)
        try:
            self._ask("release", {"name": name})
        except TrialFailed as failure:
            _LOG.warning("the ranks are ended: releasing %s failed: %s", name, failure.message)

    def close(self) -> None:
        """End the ranks, and give back their machines. May be called again."""
        try:
            self._end_ranks()
        finally:
            self._is_held = False
            self._held.close()

    def _fields(self, contestant: Contestant) -> Mapping[str, Any]:
        """Return the request's fields about a contestant. Its bundle must be for the model and cluster of the ranks."""
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
            # No rank has got a strategy yet, so no strategy caused this failure.
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
        """Check the nodes if ranks run on other machines: an unfit node would make one trial after another fail."""
        if self._launcher.control == RELAYED:
            require_fit_nodes(self.cluster, folder, files=[task_path(self._target)] if is_task(self._target) else [])

    def _ask(self, request: str, fields: Mapping[str, Any], *, seconds: float | None = None) -> Sequence[Answer]:
        """Send a request to all ranks and return their answers; end the ranks if that fails."""
        assert self._ranks is not None, "ranks are started before they are asked"
        with self._ended_by_failures():
            return self._ranks.ask(request, fields, seconds or self._timeout_seconds)

    @contextlib.contextmanager
    def _ended_by_failures(self) -> Iterator[None]:
        """End the ranks if this block raises any exception, including an interruption."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, TrialFailed):
                if error.kind != "refused" and is_full(self._folder):
                    # A full disk may show in many ways: for example, a rank cannot write its log.
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
    """Return a loss; None stands for a loss that is not finite."""
    return math.nan if value is None else value


def _counts(answers: Sequence[Answer], key: str) -> tuple[int, ...] | None:
    found = [answer[key] for answer in answers]
    return None if None in found else tuple(found)
