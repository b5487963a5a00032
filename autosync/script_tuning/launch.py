"""Starts a script on the ranks of a cluster for tuning, asks the ranks, and waits for the script's end."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from autosync import documents
from autosync.errors import OperationError
from autosync.launchers.control_address import RELAYED
from autosync.launchers.log_tail import LogTail
from autosync.launchers.node_check import require_fit_nodes
from autosync.launchers.request import Launcher, Process, TrainingScript
from autosync.launchers.script_run import plan_script
from autosync.script.script_facts import OBSERVED_STEPS, ScriptFacts
from autosync.search.progress import ProgressListener
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import dump_cluster
from autosync.specs.launchers import LAUNCHERS
from autosync.specs.model import SCHEMA_KIND, SCHEMA_VERSION, ModelSpec
from autosync.specs.model_file import dump_model
from autosync.trials.failures import TrialFailed
from autosync.trials.ranks import Answer, Ranks, plan_launch

PROGRAM = "autosync.script_tuning.rank"
PATIENCE_SECONDS = 1800.0
"""The time that a run of steps may take. A script may evaluate within it; that of torch's own groups is the same."""
PARTING_SECONDS = 600.0
"""The time that ranks have to end after they were asked to stop. The script may save a checkpoint in it."""
LEAVE_SECONDS = 1.0
POLL_SECONDS = 0.05


class ScriptRanks:
    """The ranks of a running script. The end of its `with` block ends the ranks that still run."""

    def __init__(self, cluster: ClusterSpec, script: TrainingScript, *, name: str, folder: Path) -> None:
        """`name` is the script's; what ranks write goes to logs in `folder`."""
        self._cluster = cluster
        self._script = script
        self._name = name
        self._folder = folder
        launcher: Launcher = LAUNCHERS.get(cluster.launcher)()
        # This refuses a cluster that cannot be started before anything is started.
        plan_launch(cluster, folder)
        self._held = launcher.hold(cluster)
        self._is_elsewhere = launcher.control == RELAYED
        self._ranks: Ranks | None = None
        self.have_failed = False
        """Whether the script cannot go on."""

    def __enter__(self) -> Self:
        self._held.__enter__()
        try:
            if self._is_elsewhere:
                files = [Path(word) for word in self._script.command[:1] if word.endswith(".py")]
                require_fit_nodes(self._cluster, self._folder, files=files)
            self._ranks = Ranks(self._cluster, self._folder, program=PROGRAM)
            _, request = plan_script(self._cluster, self._script, self._folder)
            self._processes: tuple[Process, ...] = request.processes
            environments = {str(one.rank): dict(one.environment) for one in request.processes}
            self.ask(
                "script",
                {
                    "command": list(self._script.command),
                    "name": self._name,
                    "environments": [environments.get(str(rank.index), {}) for rank in self._cluster.ranks],
                    "has_safe_path": bool(os.environ.get("PYTHONSAFEPATH")),
                },
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._ranks is not None:
                self._ranks.end()
        finally:
            self._held.__exit__(None, None, None)

    def ask(self, request: str, fields: Mapping[str, Any]) -> Sequence[Answer]:
        """Send a request and return the answers of the workers.

        Raise TrialFailed if it is refused, after which the script goes on under stock DDP. Everything else that goes
        wrong ends the script, and is raised as another OperationError.
        """
        assert self._ranks is not None, "ranks are started before they are asked"
        try:
            return self._ranks.ask(request, fields, PATIENCE_SECONDS)[: self._cluster.num_workers]
        except TrialFailed as failure:
            if failure.kind == "refused":
                raise
            self.have_failed = True
            raise OperationError(f"{failure.message} (what ranks wrote: {self._folder})") from failure

    def observe(self) -> tuple[ScriptFacts, Sequence[Answer]]:
        """Observe the script's first steps, and return what was seen of it, with the answers of the workers."""
        answers = self.ask("observe", {"num_steps": OBSERVED_STEPS})
        model = documents.parse(
            documents.without_file(answers[0]["model"]), kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=ModelSpec
        )
        # A script may read gradients on one rank alone, to log them.
        reasons = dict.fromkeys(reason for answer in answers for reason in answer["reasons"])
        return ScriptFacts(model=model, reasons=tuple(reasons)), answers

    def fit(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        """Have all ranks make plans for this model, and for the cluster as it is known now."""
        self.ask("fit", {"model": dump_model(model), "cluster": dump_cluster(cluster)})

    def end(self, progress: ProgressListener) -> None:
        """Have the script end where its next step begins, and wait until all ranks have ended.

        Ranks that run for long after that are ended with the `with` block, which `progress` is told.
        """
        self.ask("stop", {})
        progress.now("waiting for the script to end: its finally blocks run")
        deadline = time.monotonic() + PARTING_SECONDS
        while None in (codes := self._codes()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        if left := [str(rank) for rank, code in enumerate(codes) if code is None]:
            progress.note(
                f"{PARTING_SECONDS:g} s after the script was told to end, rank {', '.join(left)} still ran, and was "
                f"ended: what it was saving may be incomplete (what ranks wrote: {self._folder})"
            )

    @contextlib.contextmanager
    def shown(self, show: Callable[[str], None]) -> Iterator[None]:
        """Show what the script writes, from its beginning on; at the end of the block, show the rest."""
        tail, is_over = LogTail(self._processes, show), threading.Event()

        def follow() -> None:
            while not is_over.wait(POLL_SECONDS):
                tail.poll()

        follower = threading.Thread(target=follow, name="autosync-output", daemon=True)
        follower.start()
        try:
            yield
        finally:
            is_over.set()
            follower.join()
            tail.finish()

    def train(self, fields: Mapping[str, Any]) -> Sequence[Answer] | None:
        """Have the script make further steps, however long they take; None if it has ended before or meanwhile.

        Raise TrialFailed if a rank refuses the strategy. It then waits for another request.
        """
        assert self._ranks is not None, "ranks are started before they are asked"
        try:
            answers = self._ranks.ask("train", fields, math.inf)[: self._cluster.num_workers]
        except TrialFailed as failure:
            if failure.kind == "refused":
                raise
            # A rank has ended. Its exit code tells how, and its messages are shown.
            return None
        return None if any(answer["has_ended"] for answer in answers) else answers

    def wait(self) -> int:
        """Wait until the script has ended by itself; return its exit code, or that of a failed rank."""
        assert self._ranks is not None, "ranks are started before they are waited for"
        with contextlib.suppress(TrialFailed):
            # A rank that trains on its own waits for no further request.
            self._ranks.ask("leave", {}, LEAVE_SECONDS)
        while None in (codes := self._codes()) and not any(codes):
            time.sleep(POLL_SECONDS)
        return next((code for code in codes if code), 0)

    def _codes(self) -> Sequence[int | None]:
        assert self._ranks is not None, "ranks are started before they are watched"
        return self._ranks.exit_codes()[: self._cluster.num_workers]
