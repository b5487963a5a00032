"""Runs a user's training script from start to end: plans, starts, shows output, and ends all ranks together.

Nothing is restarted. When a worker fails, all other ranks are ended. A signal to `autosync launch` is passed on to the
ranks, which then have some time to end (a script may save its state). A second signal ends them at once.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autosync.launchers.environment import python_of
from autosync.launchers.log_tail import LogTail, last_words
from autosync.launchers.messages import exit_message, signal_name
from autosync.launchers.request import Launcher, LaunchRequest, Process, ScriptLaunch, TrainingScript
from autosync.signatures import SECRET_VARIABLE, draw_secret
from autosync.specs.cluster import ClusterSpec
from autosync.specs.launchers import LAUNCHERS
from autosync.specs.rank_variables import bundle_variable

POLL_SECONDS = 0.05
CAUSE_SECONDS = 1.0
"""The time that other ranks run on after a failure, so that further failures are reported too."""
PARTING_SECONDS = 15.0
"""The time that ranks have to end after a signal was passed on."""
SERVERS_SECONDS = 15.0
"""The time that servers have to notice that all workers are done."""
_PYTHON = re.compile(r"python[\d.]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOutcome:
    """The end of a training: the exit code, and messages with the cause first."""

    code: int
    words: tuple[str, ...] = ()


def script_of(
    command: Sequence[str],
    *,
    cluster: ClusterSpec,
    bundles: Sequence[Path],
    has_servers: bool,
    environment: Mapping[str, str],
    port: int | None = None,
) -> TrainingScript:
    """Return the training that runs a command with a bundle for each of its models.

    `command` begins with a Python file or with `-m MODULE`, which run through the script door. Or it begins with any
    other program, which finds the bundles in its environment.
    """
    python = python_of(cluster)
    words = tuple(command)
    if words[0] == "-m" or words[0].endswith(".py"):
        words = (python, "-P", "-m", "autosync.run", *words)
    return TrainingScript(
        command=words,
        server_command=(python, "-P", "-m", "autosync.cli", "serve") if has_servers else None,
        environment=environment,
        files={bundle_variable(number): path for number, path in enumerate(bundles)},
        port=port,
    )


def script_behind_python(command: Sequence[str]) -> tuple[str, ...]:
    """Return the script that a command gives to Python itself, past the script door; empty for other commands."""
    if not _PYTHON.fullmatch(Path(command[0]).name) or "autosync.run" in command:
        return ()
    for place, word in enumerate(command):
        if word == "-m" or word.endswith(".py"):
            return tuple(command[place : place + (2 if word == "-m" else 1)])
    return ()


def plan_script(cluster: ClusterSpec, script: TrainingScript, logs: Path) -> tuple[Launcher, LaunchRequest]:
    """Return the launcher of a cluster and the request that it would start."""
    launcher: Launcher = LAUNCHERS.get(cluster.launcher)()
    return launcher, launcher.plan_script(cluster, script, logs)


class ScriptRun:
    """A running script. One thread calls `run`; a signal handler may call `ask_to_end`."""

    def __init__(
        self, cluster: ClusterSpec, script: TrainingScript, logs: Path, *, show: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._script = script
        self._logs = logs
        self._show = show
        self._asked: list[int] = []
        self.is_running = False

    def ask_to_end(self, number: int) -> None:
        """Pass a signal on to the ranks. The second call ends them at once."""
        self._asked.append(number)

    def run(self, *, started: Callable[[LaunchRequest], None]) -> ScriptOutcome:
        """Run the script to its end, and leave no process; `started` is called when the script runs."""
        launcher, _ = plan_script(self._cluster, self._script, self._logs)
        with launcher.hold(self._cluster):
            _, request = plan_script(self._cluster, self._script, self._logs)
            launch = launcher.start(_with_secret(request))
            tail = LogTail(request.processes, self._show)
            try:
                self.is_running = True
                started(request)
                outcome = self._watch(request.processes, launch, tail)  # type: ignore[arg-type]
            finally:
                launch.stop()
            tail.finish(is_hurried=lambda: bool(self._asked))
            return self._asked_for() if self._asked else outcome

    def _watch(self, processes: Sequence[Process], launch: ScriptLaunch, tail: LogTail) -> ScriptOutcome:
        workers = [place for place, process in enumerate(processes) if process.role == "worker"]
        deadline: float | None = None
        num_passed_on = 0
        while True:
            # Before the output, which may have nowhere to go when the user's terminal is gone.
            if len(self._asked) > num_passed_on:
                num_passed_on = len(self._asked)
                if num_passed_on > 1:
                    # Stopping would first ask the ranks and wait for them.
                    launch.signal(signal.SIGKILL)
                    return self._asked_for()
                launch.signal(self._asked[0])
                deadline = time.monotonic() + PARTING_SECONDS
            is_behind = tail.poll()
            codes = launch.exit_codes()
            if None not in codes or (deadline is not None and time.monotonic() >= deadline):
                return self._outcome(processes, launch)
            has_failed = any(code not in (None, 0) for code in codes)
            are_done = all(codes[place] == 0 for place in workers)
            if deadline is None and (has_failed or are_done):
                deadline = time.monotonic() + (CAUSE_SECONDS if has_failed else SERVERS_SECONDS)
            if not is_behind:
                time.sleep(POLL_SECONDS)

    def _asked_for(self) -> ScriptOutcome:
        return ScriptOutcome(
            code=128 + self._asked[0], words=(f"all ranks were ended on {signal_name(self._asked[0])}",)
        )

    def _outcome(self, processes: Sequence[Process], launch: ScriptLaunch) -> ScriptOutcome:
        """Return the outcome: the first failure gives the exit code.

        A server that still runs when all workers are done counts as no failure.
        """
        if self._asked:
            return self._asked_for()
        codes, lost = launch.exit_codes(), launch.lost()
        failed = [place for place in launch.ended() if codes[place] != 0]
        if not failed:
            return ScriptOutcome(code=0)
        words = [
            lost.get(place)
            or f"{processes[place].place}: {exit_message(codes[place] or 0)}{last_words(processes[place].log)}"
            for place in failed
        ]
        first = codes[failed[0]]
        assert first is not None, "it has ended"
        return ScriptOutcome(code=first if first > 0 else 128 - first, words=tuple(dict.fromkeys(words)))


def _with_secret(request: LaunchRequest) -> LaunchRequest:
    """Add the secret of workers and servers, the user's or a new one. Plans lack it, because they are printed."""
    if not any(process.role == "server" for process in request.processes):
        return request
    secret = {SECRET_VARIABLE: os.environ.get(SECRET_VARIABLE) or draw_secret()}
    return replace(
        request,
        processes=tuple(
            replace(process, environment={**secret, **process.environment}) for process in request.processes
        ),
    )


def passed_on_settings(environment: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the variables given as `NAME=VALUE`, or as `NAME` with its value in `environment`.

    Raises KeyError for a name that is not set there.
    """
    settings = {}
    for text in names:
        name, is_given, value = text.partition("=")
        settings[name] = value if is_given else environment[name]
    return settings
