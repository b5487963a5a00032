"""Measures from which step on tuning has paid: `python benchmarks/break_even/break_even.py > break_even.json`.

Scripts of the script suite train on two emulated hosts, under stock DDP and under `autosync tune --keep-training`. The
clock of a run starts with its command, so the tuned run pays for its start, its trials and its proof. README.md says
what must hold.
"""

from __future__ import annotations

import bisect
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from autosync.launchers.request import TrainingScript
from autosync.launchers.script_run import ScriptRun
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "tests" / "script_suite"
sys.path += [str(ROOT), str(SUITE)]
from judging import allowances, distances, excess, mismatch, too_wide  # noqa: E402 - they lie in the suite
from listed import BY_NAME, Script  # noqa: E402
from written import Written, found, losses_in, tensors_in  # noqa: E402

from benchmarks.clusters import emulated  # noqa: E402
from benchmarks.shared import parser_of, report, run, tell  # noqa: E402

NAMES = ("plain_bf16_clipping", "accelerate_basic", "trainer_causal_lm", "trainer_classification")
NUM_EQUAL_STEPS = 200
"""Scripts save their weights halfway. After more steps, stock DDP with other rounding is far from itself."""
NUM_EQUAL_TRIALS = 4
WHOLE_NAMES = ("model.safetensors", "model.pt", "pytorch_model.bin")
"""The weights in a checkpoint that is a folder."""
BOUNDS = ((1.5, 300), (1.15, 1000))
"""The latest step that may break even, for winners that are so many times as fast."""
POLL_SECONDS = 0.005
LIMIT_SECONDS = 1800.0
ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "PYTHONSAFEPATH": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONPATH": os.pathsep.join(filter(None, (str(SUITE / "site"), os.environ.get("PYTHONPATH")))),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run: its folder, and the seconds from the command to the log of each step."""

    out: Path
    seconds: Sequence[float]


class StepClock:
    """Reads the log of a script while it grows, and notes when each line came."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._began = time.monotonic()
        self._has_ended = threading.Event()
        self._num_bytes = 0
        self.seconds: list[float] = []

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Note lines until the block ends."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._has_ended.set()
            thread.join()
            self._note()

    def _watch(self) -> None:
        while not self._has_ended.wait(POLL_SECONDS):
            self._note()

    def _note(self) -> None:
        if self._log.exists():
            with self._log.open("rb") as log:
                log.seek(self._num_bytes)
                # A torn line comes again, as a whole.
                lines = log.read().rpartition(b"\n")[0]
            self._num_bytes += len(lines) + bool(lines)
            self.seconds += [time.monotonic() - self._began] * lines.count(b'loss"')


class Trainings:
    """The runs of one script on a cluster, each in a folder of its own."""

    def __init__(self, script: Script, cluster: ClusterSpec, folder: Path, num_steps: int) -> None:
        self._script = script
        self._cluster = cluster
        self._folder = folder
        self._num_steps = num_steps

    def stock(self, name: str, *how: str) -> Run:
        """Train under stock DDP, as the suite's own program does."""
        out = self._folder / name
        program = (sys.executable, "-P", str(SUITE / "programs" / "stock.py"), *how, *self._words(out))
        training = TrainingScript(command=program, server_command=None, environment=ENVIRONMENT, files={}, port=None)
        clock = StepClock(out / self._script.losses)
        with tempfile.TemporaryDirectory() as logs, clock.ticking():
            run = ScriptRun(self._cluster, training, Path(logs), show=lambda _: None)
            ended = run.run(started=lambda _: None)
        if ended.code:
            sys.exit(f"{self._script.name} under stock DDP: {'; '.join(ended.words)}")
        return Run(out=out, seconds=tuple(clock.seconds))

    def tuned(self, name: str, *options: str) -> tuple[Run, dict[str, Any]]:
        """Train while tuning; return the study's summary too."""
        out = self._folder / name
        save_cluster(self._folder / "cluster.yaml", self._cluster)
        words = ("tune", "--cluster", "cluster.yaml", "--study", name, "--keep-training", *options, "--")
        clock = StepClock(out / self._script.losses)
        with clock.ticking(), (self._folder / f"{name}.output").open("wb") as output:
            ended = subprocess.run(
                (sys.executable, "-P", "-m", "autosync.cli", *words, *self._words(out)),
                check=False,
                cwd=self._folder,
                env={**os.environ, **ENVIRONMENT},
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_SECONDS,
            )
        if ended.returncode:
            sys.exit(f"{self._script.name}: {(self._folder / f'{name}.output').read_text()}")
        summary = json.loads((self._folder / "autosync-studies" / name / "summary.json").read_text())
        return Run(out=out, seconds=tuple(clock.seconds)), summary

    def _words(self, out: Path) -> tuple[str, ...]:
        return (str(self._script.path), "--output", str(out), "--steps", str(self._num_steps))


def written_halfway(script: Script, out: Path, num_steps: int) -> Written:
    """Return the losses and the weights of a run after half of its steps."""
    # The suite's names are those of checkpoints after 12 steps.
    checkpoint = found(out, script.checkpoint.replace("12", str(num_steps // 2)))
    weights = next((checkpoint / name for name in WHOLE_NAMES if (checkpoint / name).exists()), checkpoint)
    tensors = tensors_in(weights)
    if weights == checkpoint:
        # Moments of the optimizer are not weights.
        tensors = {name: one for name, one in tensors.items() if name.startswith("model.")}
    return Written(losses=losses_in(found(out, script.losses))[: num_steps // 2], tensors=tensors)


def break_even(tuned: Sequence[float], stock: Sequence[float]) -> int | None:
    """Return the first step from which on a run stays ahead of the other to its end; None if it is behind there."""
    is_ahead = [mine <= other for mine, other in zip(tuned, stock, strict=True)]
    if not is_ahead[-1]:
        return None
    return next((step for step in range(len(is_ahead), 0, -1) if not is_ahead[step - 1]), 0) + 1


def most_steps(speedup: float) -> int | None:
    """Return the step at which a winner that is so many times as fast must have broken even; None: no promise."""
    place = bisect.bisect_right([-least for least, _ in BOUNDS], -speedup - 1e-12)
    return BOUNDS[place][1] if place < len(BOUNDS) else None


def equality(tuned: Written, stock: Written, jitter: Written) -> dict[str, Any]:
    """Return how far a run is from stock DDP, as a share of what is allowed; above 1 it is too far."""
    if words := mismatch(tuned, stock) or too_wide(allowances(stock, jitter), stock):
        return {"share": None, "words": words}
    share, place = excess(distances(tuned, stock), allowances(stock, jitter))
    return {"share": round(share, 4), "words": place}


def equality_case(script: Script, cluster: ClusterSpec, folder: Path) -> dict[str, Any]:
    """Compare a run that is tuned in its first half with stock DDP, at the end of that half."""
    num_steps = 2 * NUM_EQUAL_STEPS
    trainings = Trainings(script, cluster, folder, num_steps)
    stock = trainings.stock("stock", "--bucket-mb", "25")
    tuned, _ = trainings.tuned("tuned", "--trials", str(NUM_EQUAL_TRIALS))
    jitter = trainings.stock("jitter", "--jitter")
    written = [written_halfway(script, run.out, num_steps) for run in (tuned, stock, jitter)]
    return {"script": script.name, "after_steps": NUM_EQUAL_STEPS, **equality(*written)}


def break_even_case(script: Script, cluster: ClusterSpec, folder: Path, num_steps: int) -> dict[str, Any]:
    """Time a script in both ways; stock DDP's time is the mean of a run before the tuned one and a run after it."""
    trainings = Trainings(script, cluster, folder, num_steps)
    before = trainings.stock("before", "--bucket-mb", "25")
    tuned, summary = trainings.tuned("tuned")
    after = trainings.stock("after", "--bucket-mb", "25")
    stock = [(one + other) / 2 for one, other in zip(before.seconds, after.seconds, strict=True)]
    gain = summary["winner"]["speedup_over_stock_ddp"]
    # None if stock DDP itself has won.
    speedup = gain["value"] if gain else 1.0
    return {
        "script": script.name,
        "speedup": speedup,
        "stock_step_seconds": [round(_step_seconds(one.seconds), 4) for one in (before, after)],
        "last_step_seconds": round(_step_seconds(tuned.seconds[-50:]), 4),
        "first_step_at_seconds": {
            "stock": [round(one.seconds[0], 1) for one in (before, after)],
            "tuned": round(tuned.seconds[0], 1),
        },
        "seconds": {"stock": round(stock[-1], 1), "tuned": round(tuned.seconds[-1], 1)},
        "break_even_step": break_even(tuned.seconds, stock),
        "printed_break_even_step": summary["cost"]["break_even_step"],
        "cost": summary["cost"],
        "most_steps": most_steps(speedup),
    }


def _step_seconds(seconds: Sequence[float]) -> float:
    return median(later - sooner for sooner, later in pairwise(seconds))


def is_equal(row: Mapping[str, Any]) -> bool:
    """Whether a script trained as under stock DDP."""
    return row["share"] is not None and row["share"] <= 1


def are_in_time(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all scripts broke even in time whose winners were fast enough for a promise, and there were some."""
    promised = [row for row in rows if row["most_steps"] is not None]
    return bool(promised) and all(
        row["break_even_step"] is not None and row["break_even_step"] <= row["most_steps"] for row in promised
    )


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--scripts", nargs="+", choices=sorted(BY_NAME), default=NAMES, metavar="NAME")
    parser.add_argument("--only", choices=("equality", "break_even"), help="one of the two questions")
    parser.add_argument("--megabits", type=float, default=50.0, help="the rate of both links")
    parser.add_argument("--devices", type=int, default=2, help="the ranks of each host")
    parser.add_argument("--steps", type=int, default=600, help="the steps of runs that are timed")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what the runs write")
    options = parser.parse_args()
    cluster = emulated(options.megabits, options.megabits, devices=options.devices)
    equal: list[dict[str, Any]] = []
    timed: list[dict[str, Any]] = []
    for name in options.scripts:
        if options.only != "break_even":
            with _folder(options.keep, f"{name}-equality") as folder:
                equal.append(equality_case(BY_NAME[name], cluster, folder))
            tell(json.dumps(equal[-1]))
        if options.only != "equality":
            with _folder(options.keep, f"{name}-break-even") as folder:
                timed.append(break_even_case(BY_NAME[name], cluster, folder, options.steps))
            tell(json.dumps(timed[-1]))
    document = {
        "megabits": options.megabits,
        "devices": options.devices,
        "steps": options.steps,
        "equality": equal,
        "break_even": timed,
    }
    return report(document, holds=all(map(is_equal, equal)) and (options.only == "equality" or are_in_time(timed)))


@contextmanager
def _folder(kept: Path | None, name: str) -> Iterator[Path]:
    """Yield a folder for the runs of a case."""
    if kept is not None:
        (kept / name).mkdir(parents=True, exist_ok=True)
        yield kept / name
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


if __name__ == "__main__":
    run(main)
