"""A user's training, from its start to its end: planned, started, shown, and ended as a whole.

Nothing is restarted. When a worker fails, all others end; when whoever launched is asked to end, the ranks are asked
the same way and have some time for it (a script may save its state); a second time they have none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autosync.launchers import LAUNCHERS
from autosync.launchers.environment import BUNDLE_VARIABLE, python_of
from autosync.launchers.request import Launcher, LaunchRequest, MindedLaunch, Process, Script
from autosync.launchers.tail import Tail, last_words
from autosync.launchers.words import how_it_ended, name_of
from autosync.specs.cluster import ClusterSpec

POLL_SECONDS = 0.05
CAUSE_SECONDS = 1.0
"""How long others may go on after one has failed, so that what came of it is told too."""
PARTING_SECONDS = 15.0
"""How long ranks have after a signal that was passed on to them."""
SERVERS_SECONDS = 15.0
"""How long those that only serve have to notice that all workers are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a training ended: the code to exit with, and what is to be said of it, the cause first."""

    code: int
    words: tuple[str, ...] = ()


def script_of(
    command: Sequence[str],
    *,
    cluster: ClusterSpec,
    bundle: Path,
    has_servers: bool,
    environment: Mapping[str, str],
    port: int | None = None,
) -> Script:
    """A training under a bundle. `command` begins with a Python file, with `-m MODULE`, or with any other program."""
    python = python_of(cluster)
    words = tuple(command)
    if words[0] == "-m" or words[0].endswith(".py"):
        words = (python, *words)
    return Script(
        command=words,
        server_command=(python, "-P", "-m", "autosync.cli", "serve") if has_servers else None,
        environment=environment,
        files={BUNDLE_VARIABLE: bundle},
        port=port,
    )


def plan_script(cluster: ClusterSpec, script: Script, logs: Path) -> tuple[Launcher, LaunchRequest]:
    """The launcher of a cluster and what it would start; refuses what it cannot start."""
    launcher: Launcher = LAUNCHERS.get(cluster.launcher)()
    return launcher, launcher.plan_script(cluster, script, logs)


class Training:
    """A script that runs. One thread calls `run`; a signal handler may call `ask_to_end`."""

    def __init__(self, cluster: ClusterSpec, script: Script, logs: Path, *, show: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._script = script
        self._logs = logs
        self._show = show
        self._asked: list[int] = []
        self.is_running = False

    def ask_to_end(self, number: int) -> None:
        """Pass a signal on to the ranks; the second one ends them at once."""
        self._asked.append(number)

    def run(self, *, started: Callable[[LaunchRequest], None]) -> Ended:
        """Run the script to its end. `started` is told what runs. Nothing is left when this returns or raises."""
        launcher, _ = plan_script(self._cluster, self._script, self._logs)
        with launcher.hold(self._cluster):
            _, request = plan_script(self._cluster, self._script, self._logs)
            launch = launcher.start(request)
            tail = Tail(request.processes, self._show)
            try:
                self.is_running = True
                started(request)
                outcome = self._watch(request.processes, launch, tail)  # type: ignore[arg-type]
            finally:
                launch.stop()
            tail.finish()
            return outcome

    def _watch(self, processes: Sequence[Process], launch: MindedLaunch, tail: Tail) -> Ended:
        workers = [place for place, process in enumerate(processes) if process.role == "worker"]
        deadline: float | None = None
        num_passed_on = 0
        while True:
            tail.poll()
            codes = launch.exit_codes()
            if len(self._asked) > num_passed_on:
                num_passed_on = len(self._asked)
                if num_passed_on > 1:
                    return self._asked_for()
                launch.signal(self._asked[0])
                deadline = time.monotonic() + PARTING_SECONDS
            if None not in codes or (deadline is not None and time.monotonic() >= deadline):
                return self._outcome(processes, launch)
            has_failed = any(code not in (None, 0) for code in codes)
            are_done = all(codes[place] == 0 for place in workers)
            if deadline is None and (has_failed or are_done):
                deadline = time.monotonic() + (CAUSE_SECONDS if has_failed else SERVERS_SECONDS)
            time.sleep(POLL_SECONDS)

    def _asked_for(self) -> Ended:
        return Ended(code=128 + self._asked[0], words=(f"all ranks were ended on {name_of(self._asked[0])}",))

    def _outcome(self, processes: Sequence[Process], launch: MindedLaunch) -> Ended:
        """The first that failed gives the code. A server that is there when all workers are done is no failure."""
        if self._asked:
            return self._asked_for()
        codes, lost = launch.exit_codes(), launch.lost()
        failed = [place for place in launch.ended() if codes[place] != 0]
        if not failed:
            return Ended(code=0)
        words = [
            lost.get(place)
            or f"{processes[place].place}: {how_it_ended(codes[place] or 0)}{last_words(processes[place].log)}"
            for place in failed
        ]
        first = codes[failed[0]]
        assert first is not None, "it has ended"
        return Ended(code=first if first > 0 else 128 - first, words=tuple(dict.fromkeys(words)))


def passed_on_settings(environment: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Of `NAME=VALUE` or `NAME` (with the value that it has here) the settings; KeyError names one that is not set."""
    settings = {}
    for text in names:
        name, is_given, value = text.partition("=")
        settings[name] = value if is_given else environment[name]
    return settings
