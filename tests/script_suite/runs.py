"""Runs one script in all the ways of the suite: by stock DDP, by `autosync`, and observed for its model spec.

Each run has a folder of its own, in which the script's output folder is `out`. Runs of stock DDP are made once.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from listed import Script
from processes import Ended, run
from written import Written, found, read

NUM_STEPS = 24
HERE = Path(__file__).parent
ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONSAFEPATH": "1",
    # Models are made of configurations, so whatever would be downloaded is a mistake.
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE / "site"), os.environ.get("PYTHONPATH")))),
}
PYTHON: Sequence[str] = (sys.executable, "-P")
AUTOSYNC: Sequence[str] = (*PYTHON, "-m", "autosync.cli")
TORCHRUN: Sequence[str] = (*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
STOCK: Mapping[str, Sequence[str]] = {
    "stock-25": ("--bucket-mb", "25"),
    "stock-1": ("--bucket-mb", "1"),
    "jitter": ("--jitter", "1"),
}
"""The runs of stock DDP; the first is what others are compared with."""
MORE_STOCK: Mapping[str, Sequence[str]] = {f"jitter-{seed}": ("--jitter", str(seed)) for seed in range(2, 11)}
"""Further runs of stock DDP, for scripts in which rounding grows: one run says little of how far it may lead."""

Command = Sequence[str | Path]


class RunFailed(Exception):  # noqa: N818 - a run that fails is a result
    """A run has ended with an error, or was over its time."""

    def __init__(self, name: str, ended: Ended) -> None:
        super().__init__(f"{name}: {'over its time' if ended.code is None else f'exit code {ended.code}'}")
        self.ended = ended


class Runs:
    """The runs of a script, in a folder."""

    def __init__(self, script: Script, folder: Path, *, limit_seconds: float) -> None:
        self.script = script
        self.folder = folder
        self._limit_seconds = limit_seconds

    def run(self, name: str, command: Command, *arguments: str | Path, steps: int = NUM_STEPS) -> Ended:
        """Run the script by a command, to which its path and arguments are added."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        words = (self.script.path, "--output", self.folder / name / "out", "--steps", str(steps), *arguments)
        ended = run(
            (*command, *words),
            folder=self.folder / name,
            environment=ENVIRONMENT,
            limit_seconds=self._limit_seconds,
        )
        if ended.code != 0:
            raise RunFailed(name, ended)
        return ended

    def written(self, name: str, *, has_ended: bool = True) -> Written:
        """Return what the script has written in a run; if the run was ended before its end, only losses."""
        out = self.folder / name / "out"
        return read(out, losses=self.script.losses, weights=self.script.weights if has_ended else None)

    def stock(self, name: str, how: Sequence[str] = (), *arguments: str | Path, steps: int = NUM_STEPS) -> None:
        """Run the script under stock DDP, unless it was done before."""
        done = self.folder / name / "done"
        if done.exists():
            return
        command = (*TORCHRUN, HERE / "programs" / "stock.py", *how)
        try:
            self.run(name, command, *arguments, steps=steps)
        except RunFailed:
            # Once more: torch's own all-reduce of sparse gradients on gloo corrupts memory now and then.
            self.run(name, command, *arguments, steps=steps)
        done.touch()

    def references(self, which: Mapping[str, Sequence[str]] = STOCK) -> list[Written]:
        """Return what runs of stock DDP have written, in their order."""
        for name, how in which.items():
            self.stock(name, how)
        return [self.written(name) for name in which]

    def resumed(self, name: str) -> Written:
        """Return what stock DDP makes of the checkpoint that a run has saved halfway."""
        checkpoint = found(self.folder / name / "out", self.script.checkpoint)
        resumed = f"{name}-resumed"
        if name not in STOCK:
            shutil.rmtree(self.folder / resumed, ignore_errors=True)
        self.stock(resumed, (), "--resume", checkpoint)
        return self.written(resumed)

    def models(self) -> list[Path]:
        """Return the script's model specs: observed in its first steps, or profiled of its tasks."""
        if self.script.tasks:
            return [self._profiled(task) for task in self.script.tasks]
        path = self.folder / "model.yaml"
        if not path.exists():
            self.run("observed", (*TORCHRUN, HERE / "programs" / "observe.py", path))
        return [path]

    def _profiled(self, task: str) -> Path:
        path = self.folder / f"{task.partition(':')[2]}.yaml"
        if not path.exists():
            ended = run(
                (*AUTOSYNC, "profile", HERE / task, "-o", path),
                folder=self.folder / "profiled",
                environment=ENVIRONMENT,
                limit_seconds=self._limit_seconds,
            )
            if ended.code != 0:
                raise RunFailed("profile", ended)
        return path
