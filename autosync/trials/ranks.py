"""One generation of ranks, which are started, asked and ended together.

Every request has a deadline. If ranks make steps, it is a deadline for each step: a request for many slow steps takes
the time that they need. Each failure becomes a `TrialFailed` that names the rank at fault. The generation is then
useless, and its owner must end it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import queue
import selectors
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autosync.errors import OperationError
from autosync.launchers.control_address import RELAYED, tcp_place
from autosync.launchers.environment import python_of
from autosync.launchers.log_tail import last_words
from autosync.launchers.messages import exit_message as _how
from autosync.launchers.request import Launch, Launcher, LaunchRequest
from autosync.signatures import SECRET_VARIABLE, draw_secret
from autosync.specs.cluster import ClusterSpec
from autosync.specs.launchers import LAUNCHERS
from autosync.trials import control
from autosync.trials.control import Channel, ControlError, ControlListener
from autosync.trials.failures import Blame, TrialFailed

RANK_WORKER = "autosync.trials.rank_worker"
"""The module that the ranks of a trial service run."""

POLL_SECONDS = 0.05
START_SECONDS = 120.0
"""The time that ranks have to start: loading Python and torch from a slow disk takes long."""
GRACE_SECONDS = 1.0
"""The time that other ranks go on after one has failed, so that the cause is found and not only its consequences."""
WHERE_SECONDS = 2.0
"""The time that a late rank has to report where it is. A stopped rank never reports."""

Answer = Mapping[str, Any]
_LOG = logging.getLogger(__name__)


def plan_launch(
    cluster: ClusterSpec, folder: Path, address: str = "ADDRESS", *, program: str = RANK_WORKER
) -> tuple[Launcher, LaunchRequest]:
    """Return a cluster's launcher and the request that runs a module on every rank; raise an error if it cannot run."""
    launcher: Launcher = LAUNCHERS.get(cluster.launcher)()
    command = (python_of(cluster), "-m", program, address)
    return launcher, launcher.plan(cluster, command, folder)


@dataclass(slots=True)
class _Heard:
    """The answers, errors and losses of ranks since a request was sent, in the order of their arrival."""

    progress: Callable[[str], None] = lambda _: None
    answers: dict[int, Answer] = field(default_factory=dict)
    errors: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    lost: dict[int, str | None] = field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        return bool(self.errors or self.lost)

    def is_known(self, rank: int) -> bool:
        """Whether a rank's outcome is known: an answer, an error, or the reason for its end."""
        return rank in self.answers or rank in self.errors or self.lost.get(rank) is not None

    def take(self, rank: int, message: Mapping[str, Any]) -> None:
        """Take in a rank's message about the request."""
        if "doing" in message:
            if rank == 0:
                self.progress(message["doing"])
        elif "error" in message:
            self.errors[rank] = message["error"]
        else:
            self.answers[rank] = message["result"]


def _idle_seconds(told: Mapping[int, Answer]) -> float:
    """Return how long ago any rank has ended a step; infinite if none has told of one."""
    ages = [one["idle_seconds"] for one in told.values() if one["idle_seconds"] is not None]
    return min(ages, default=math.inf)


class Ranks:
    """All ranks of a cluster, running and connected: workers first, then ranks that only serve."""

    def __init__(self, cluster: ClusterSpec, folder: Path, *, program: str = RANK_WORKER) -> None:
        """Start the ranks, each running the module `program`, and wait until all are connected. Logs go to `folder`."""
        self.folder = folder
        self._cluster = cluster
        self._program = program
        self._num_ranks = len(cluster.ranks)
        self._names = [f"rank {rank}" for rank in range(self._num_ranks)]
        self._channels: dict[int, Channel] = {}
        self._numbers = itertools.count(1)
        # What was heard about the requests under way, by their numbers.
        self._heard: dict[Any, _Heard] = {}
        self._launch: Launch | None = None
        self._gate: ControlListener | None = None
        try:
            self._start()
        except (OperationError, OSError) as error:
            self.end()
            if isinstance(error, TrialFailed):
                raise
            raise TrialFailed("launch", str(error)) from error
        except BaseException:
            self.end()
            raise

    def _start(self) -> None:
        token = draw_secret()
        launcher, _ = self._planned("ADDRESS")
        # Private, because a user who can read the file in which ranks meet can also lock it, and so keep them waiting.
        self._private.mkdir(mode=0o700, parents=True)
        if launcher.control == "loopback":
            self._gate = control.listen_on_loopback(token, self._num_ranks)
        else:
            self._gate = control.listen_in_folder(self._private, token, self._num_ranks)
        _, request = self._planned(RELAYED if launcher.control == RELAYED else self._gate.address)
        if launcher.control == RELAYED:
            # On several machines, the name says where to look.
            self._names = [process.place for process in request.processes]
        # Secrets are added only now, because plans are printed, and never to command lines, which all users can see.
        secret = {control.TOKEN_VARIABLE: token, SECRET_VARIABLE: draw_secret()}
        with_secret = tuple(
            dataclasses.replace(one, environment={**one.environment, **secret}) for one in request.processes
        )
        self._launch = launcher.start(dataclasses.replace(request, processes=with_secret, control=self._gate.address))
        self._await_all(self._gate, self._launch)
        # All ranks are connected, so no more connections are needed.
        self._gate.close()

    def _planned(self, address: str) -> tuple[Launcher, LaunchRequest]:
        return plan_launch(self._cluster, self.folder, address, program=self._program)

    def _await_all(self, gate: ControlListener, launch: Launch) -> None:
        deadline = time.monotonic() + START_SECONDS
        while len(self._channels) < self._num_ranks:
            with contextlib.suppress(queue.Empty):
                rank, channel = gate.admitted.get(timeout=POLL_SECONDS)
                self._channels[rank] = channel
                continue
            for how in launch.lost().values():
                raise TrialFailed("launch", how)
            for rank, code in enumerate(launch.exit_codes()):
                if code is not None:
                    how = f"{_how(code)}{self._last_words(rank)}"
                    raise TrialFailed("launch", f"{self._names[rank]} ended at its start: {how}")
            if time.monotonic() >= deadline:
                missing = sorted(set(range(self._num_ranks)) - set(self._channels))
                raise TrialFailed("launch", f"not there within {START_SECONDS:g} s: {self._listed(missing)}")

    def _last_words(self, rank: int) -> str:
        """Return the last line of a rank's log, with a note if the disk is full."""
        return last_words(self.folder / f"rank-{rank}.log")

    @property
    def are_well(self) -> bool:
        """Whether all ranks still run, as far as can be told without a request to them."""
        return self._launch is not None and all(code is None for code in self._launch.exit_codes())

    def exit_codes(self) -> Sequence[int | None]:
        """Return the exit code of each rank, or None while it runs."""
        assert self._launch is not None, "the ranks have been started"
        return self._launch.exit_codes()

    def meeting_point(self) -> str:
        """Return where these ranks can meet: a file, or on several machines a port that the first rank opens."""
        launcher, _ = self._planned("ADDRESS")
        if launcher.control == RELAYED:
            first = self._cluster.nodes[self._cluster.ranks[0].node].name
            host = launcher.addresses(self._cluster)[first]
            return tcp_place(host, self.ask("meet", {}, START_SECONDS)[0]["port"])
        return str(self._private.resolve() / "rendezvous")

    @property
    def _private(self) -> Path:
        """A folder that only this user can enter; it exists while the ranks run."""
        return self.folder / "private"

    def ask(
        self,
        request: str,
        fields: Mapping[str, Any],
        seconds: float,
        *,
        progress: Callable[[str], None] = lambda _: None,
    ) -> list[Answer]:
        """Send a request and return the answers of all ranks in order; raise TrialFailed unless all answer in time.

        `progress` is called with the activity that the first rank reports.
        """
        with self._sent(request, fields, range(self._num_ranks), progress) as heard:
            left = seconds
            while True:
                self._listen(heard, left, range(self._num_ranks))
                if len(heard.answers) == self._num_ranks:
                    return [heard.answers[rank] for rank in range(self._num_ranks)]
                if heard.has_failed:
                    raise self._failure(heard)
                late = [rank for rank in range(self._num_ranks) if rank not in heard.answers]
                told = self._where(late)
                left = seconds - _idle_seconds(told)
                # What ranks have said about the request meanwhile is looked at in the next round.
                if left <= 0 and not any(heard.is_known(rank) for rank in late):
                    raise self._too_late(late, told, seconds)

    @contextlib.contextmanager
    def _sent(
        self,
        request: str,
        fields: Mapping[str, Any],
        ranks: Iterable[int],
        progress: Callable[[str], None] = lambda _: None,
    ) -> Iterator[_Heard]:
        """Send a request to some ranks. Within the block, what they say about it is heard."""
        number = next(self._numbers)
        heard = self._heard[number] = _Heard(progress=progress)
        try:
            for rank in ranks:
                try:
                    self._channels[rank].send({"id": number, "request": request, **fields})
                except ControlError:
                    heard.lost[rank] = None
            yield heard
        finally:
            del self._heard[number]

    def _listen(self, heard: _Heard, seconds: float, ranks: Sequence[int]) -> None:
        """Receive the ranks' messages, until every outcome of a request is known or the time is over."""
        deadline = time.monotonic() + seconds
        is_cut_short = False
        with selectors.DefaultSelector() as selector:
            for rank in ranks:
                if rank not in heard.lost:
                    selector.register(self._channels[rank], selectors.EVENT_READ, rank)
            while not all(heard.is_known(rank) for rank in ranks):
                for key, _ in selector.select(max(0.0, min(POLL_SECONDS, deadline - time.monotonic()))):
                    if not self._hear(key.data):
                        selector.unregister(key.fileobj)
                self._see_exits(heard)
                if heard.has_failed and not is_cut_short:
                    is_cut_short = True
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
                if time.monotonic() >= deadline:
                    return

    def _hear(self, rank: int) -> bool:
        """Receive a rank's messages; return false if its connection is closed."""
        try:
            messages = self._channels[rank].read()
        except ControlError as error:
            if not isinstance(error, control.ClosedError):
                _LOG.warning("rank %d: closed its control connection: %s", rank, error)
            self._channels[rank].close()
            for heard in self._heard.values():
                heard.lost.setdefault(rank, None)
            return False
        for message in messages:
            # Late answers to an earlier request are ignored.
            about = self._heard.get(message.get("id"))
            if about is not None:
                about.take(rank, message)
        return True

    def _see_exits(self, heard: _Heard) -> None:
        assert self._launch is not None, "asked ranks have been started"
        lost = self._launch.lost()
        heard.lost.update(lost)
        for rank, code in enumerate(self._launch.exit_codes()):
            if code is not None and rank not in lost:
                heard.lost[rank] = f"{_how(code)}{self._last_words(rank) if code > 0 else ''}"

    def _failure(self, heard: _Heard) -> TrialFailed:
        """Return the failure that caused the others."""
        for rank, error in heard.errors.items():
            if error["kind"] == "refused":
                return TrialFailed("refused", f"{self._names[rank]}: {error['message']}")
        assert self._launch is not None, "asked ranks have been started"
        elsewhere = self._launch.lost()
        # Lost ranks come before ranks that raised errors: a rank that vanishes makes all others raise errors.
        # A rank that has answered, and is gone without an exit code, comes last.
        gone = [rank for rank, how in heard.lost.items() if rank not in heard.answers or how is not None]
        if not gone:
            # An error of a rank's own comes before those of ranks whose connections it closed thereby.
            for rank, error in sorted(heard.errors.items(), key=lambda one: one[1]["blame"] == "either"):
                return TrialFailed("raised", f"{self._names[rank]}: {error['message']}", blame=error["blame"])
        rank = next(iter([*gone, *heard.lost]))
        message = f"{self._names[rank]} is gone: {heard.lost[rank] or 'it closed its connection'}"
        return TrialFailed("lost_rank", message, blame="machines" if rank in elsewhere else "either")

    def _where(self, late: Sequence[int]) -> Mapping[int, Answer]:
        """Ask late ranks where they are, and return the answers of those that give one."""
        with self._sent("where", {}, late) as heard:
            self._listen(heard, WHERE_SECONDS, late)
            return heard.answers

    def _too_late(self, late: Sequence[int], told: Mapping[int, Answer], seconds: float) -> TrialFailed:
        """Return the failure of late ranks; silent ranks come first, because the others may wait for them."""
        silent = [rank for rank in late if rank not in told]
        where = [f"{self._names[rank]} is {told[rank]['where']}" for rank in late if rank in told]
        if silent:
            verb = "does" if len(silent) == 1 else "do"
            where.insert(0, f"{self._listed(silent)} {verb} not answer at all (stopped, or stuck outside Python)")
        what = "not done" if math.isinf(_idle_seconds(told)) else "no step was done"
        # A rank that is stopped or cut off may be late without the strategy's fault.
        blame: Blame = "either" if silent else "strategy"
        return TrialFailed("timeout", f"{what} within {seconds:g} s: {'; '.join(where)}", blame=blame)

    def _listed(self, ranks: Sequence[int]) -> str:
        return ", ".join(self._names[rank] for rank in ranks)

    def end(self) -> None:
        """End all ranks that still run. May be called again."""
        for channel in self._channels.values():
            channel.close()
        try:
            if self._launch is not None:
                self._launch.stop()
        finally:
            if self._gate is not None:
                self._gate.close()
                self._gate = None
            # If a rank was killed, the file in which ranks met is still there.
            shutil.rmtree(self._private, ignore_errors=True)
