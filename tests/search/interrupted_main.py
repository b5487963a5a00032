"""Tunes in processes that are killed again and again, or that share a study; prints the results.

    python interrupted_main.py killed FOLDER NUM_KILLS NUM_TRIALS
    python interrupted_main.py killed-for-real FOLDER NUM_KILLS NUM_TRIALS
    python interrupted_main.py together FOLDER URL NUM_TRIALS

Everything is imported once; the tuning processes are forks of this one. They are killed at a random moment, without
time to tidy up: when their study's journal has grown by some lines, and a little later. Trials run on a service that
runs nothing, or with `killed-for-real` on real ranks of this machine. Each run wants some more trials than the last
one, so that it dies in its search or its proof.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import optuna

import autosync.search.tuning_plan
from autosync.datasets.storage import close_storage, open_journal, open_storage
from autosync.datasets.studies import read_study
from autosync.search.measurement_effort import Effort
from autosync.search.tune import tune
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.model_file import save_model
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.compare import Design
from autosync.trials.contestant import Contestant
from autosync.trials.policy import Policy

STUDY = "autosync-studies/s"
JOURNAL = Path(STUDY, "journal.log")
LINES_OF_A_TRIAL = 5
"""About so many are written by a trial, of the search as of the proof."""
LATER_SECONDS = {"killed": 0.02, "killed-for-real": 2.0}
"""About as long as a trial."""
GONE_SECONDS = 15.0
"""By then the ranks of whoever was killed must be gone."""

EFFORT = Effort(
    trial=Policy(max_warmup_steps=4, min_steps=4, max_steps=8, budget_seconds=2.0),
    proof=Design(num_steps=12, budget_seconds=5.0),
)


class _Service(FakeService):
    """How long a contestant's steps take depends on its name."""

    def prepare(self, contestant: Contestant) -> None:
        share = int(hashlib.sha256(contestant.name.encode()).hexdigest()[:6], 16) / 0xFFFFFF
        self._others = FakeSteps(seconds=0.1 + 0.1 * share, noise=0.002)
        super().prepare(contestant)


def _write_specs() -> None:
    shapes = {"fc.weight": (40, 30), "fc.bias": (40,), "out.weight": (10, 40)}
    variables = tuple(
        Variable(name=name, shape=shape, use=place, ready=2 - place)
        for place, (name, shape) in enumerate(shapes.items())
    )
    segment = Segment(module="all", seconds=0.01, variables=tuple(shapes))
    timeline = Timeline(device="cpu", source="computed", forward=(segment,), backward=(segment,))
    optimizer = OptimizerSpec(name="SGD")
    save_model(ModelSpec(name="tiny", optimizer=optimizer, variables=variables, timeline=timeline), "model.yaml")
    node = Node(name="this", host="localhost", devices=2, bandwidth_out=1e9, bandwidth_in=1e9)
    save_cluster(Path("pair.yaml"), ClusterSpec(name="pair", nodes=(node,)))


def _fork(work: Callable[[], None]) -> int:
    """A process that does the work and ends; it says nothing unless the work fails."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work()
        code = 0
    except Exception:  # noqa: BLE001 - told, and then the process ends
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _tune_on(num_trials: int) -> None:
    if Path(STUDY, "study.json").exists():
        tune(resume="s", num_trials=num_trials, patience=0)
    else:
        # None was begun yet, or who began it was killed before it had its settings.
        tune(
            model="model.yaml",
            cluster="pair.yaml",
            study="s",
            proposer="evolution",
            # It has nothing to learn after each trial.
            simulator="analytical",
            num_trials=num_trials,
            effort=EFFORT,
            patience=0,
        )


def _kill(process: int, *, num_lines: int, later_seconds: float) -> bool:
    """Kill it when the journal has so many lines more, and a little later; False if it has ended by then."""
    enough = _num_lines() + num_lines
    while _is_running(process) and _num_lines() < enough:
        time.sleep(0.001)
    time.sleep(later_seconds)
    os.kill(process, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(process, 0)[1])


def _num_lines() -> int:
    return JOURNAL.read_bytes().count(b"\n") if JOURNAL.exists() else 0


def _is_running(process: int) -> bool:
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _killed(num_kills: int, num_trials: int, *, later_seconds: float) -> dict[str, object]:
    rng = random.Random(11)
    kept: dict[int, str | None] = {}
    num_died = num_lost = num_left = 0
    for number in range(num_kills):
        wanted = num_trials * (number + 1) // num_kills
        num_died += _kill(
            _fork(lambda wanted=wanted: _tune_on(wanted)),  # type: ignore[misc]
            num_lines=rng.randrange((num_trials // num_kills + 1) * LINES_OF_A_TRIAL),
            later_seconds=rng.uniform(0, later_seconds),
        )
        num_left += _num_left()
        if JOURNAL.exists():
            records = {one.trial: one.strategy_id for one in read_study(STUDY, report=lambda _: None)}
            num_lost += sum(records.get(number, "none") != identity for number, identity in kept.items())
            kept = records
    _, status = os.waitpid(_fork(lambda: _tune_on(num_trials)), 0)
    searched, for_proof = _strategies(optuna.load_study(study_name="s", storage=open_journal(JOURNAL)))
    contests = json.loads(Path(STUDY, "summary.json").read_bytes())["contests"] if status == 0 else []
    contested = {one["strategy_id"]: one["role"] for one in contests if one["role"] != "default"}
    return {
        "num_died": num_died,
        "num_lost": num_lost,
        "num_processes_left": num_left,
        "ended_well": status == 0,
        "num_records": len(searched),
        "num_rivals": sum(role in ("best bucket", "best preset") for role in contested.values()),
        "num_unrecorded": len(set(contested) - {*searched, *for_proof}),
        "num_repeated": len(searched) + len(for_proof) - len({*searched, *for_proof}),
        "has_best": Path(STUDY, "best.yaml").exists(),
    }


def _num_left() -> int:
    """How many processes beside this one still work in this folder when they should be gone."""
    here, end = str(Path.cwd()), time.monotonic() + GONE_SECONDS
    while True:
        found = 0
        for place in Path("/proc").glob("[0-9]*/cwd"):
            try:
                found += str(place.readlink()) == here and int(place.parent.name) != os.getpid()
            except OSError:
                # It ended while we looked.
                continue
        if found == 0 or time.monotonic() > end:
            return found
        time.sleep(0.05)


def _strategies(study: optuna.Study) -> tuple[list[str | None], list[str | None]]:
    """What was measured, by the search and for proofs alone."""
    found: tuple[list[str | None], list[str | None]] = ([], [])
    for trial in study.get_trials():
        if "record" in trial.user_attrs:
            found["for_proof" in trial.user_attrs].append(trial.user_attrs["record"].get("strategy_id"))
    return found


def _together(url: str, num_trials: int) -> dict[str, object]:
    """Two tuners, each in a folder of its own."""
    top = Path.cwd()

    def work(place: str) -> None:
        folder = top / place
        folder.mkdir()
        os.chdir(folder)
        _write_specs()
        tune(
            model="model.yaml",
            cluster="pair.yaml",
            study="s",
            proposer="evolution",
            # It has nothing to learn after each trial.
            simulator="analytical",
            num_trials=num_trials,
            effort=EFFORT,
            patience=0,
            storage=url,
        )

    processes = [_fork(lambda place=place: work(place)) for place in ("here", "there")]  # type: ignore[misc]
    ended_well = [os.waitpid(process, 0)[1] == 0 for process in processes]
    storage = open_storage(url)
    study = optuna.load_study(study_name="s", storage=storage)
    trials = study.get_trials()
    searched, _ = _strategies(study)
    close_storage(storage)
    return {
        "ended_well": all(ended_well),
        "num_records": len(searched),
        "num_repeated": len(searched) - len(set(searched)),
        "num_tuners": len({trial.user_attrs["tuner"] for trial in trials if "record" in trial.user_attrs}),
        "num_unfinished": sum(trial.state.name == "RUNNING" for trial in trials),
    }


def main() -> None:
    what, folder, first, second = sys.argv[1:]
    os.chdir(folder)
    if what != "killed-for-real":
        autosync.search.tuning_plan.TrialService = lambda **_: _Service({})  # type: ignore[assignment,misc]
    _write_specs()
    if what == "together":
        result = _together(first, int(second))
    else:
        result = _killed(int(first), int(second), later_seconds=LATER_SECONDS[what])
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
