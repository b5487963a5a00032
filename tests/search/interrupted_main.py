"""Tunes on a service that runs nothing, in processes that are killed again and again; prints what became of it.

    python interrupted_main.py killed FOLDER NUM_KILLS NUM_TRIALS
    python interrupted_main.py together FOLDER URL NUM_TRIALS

Everything is imported once; the processes that tune are forks of this one. They die by a signal that nobody handles, at
a moment by lot, so that nothing of theirs is tidied up.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import optuna

import autosync.search.plan
from autosync.datasets.storage import open_storage
from autosync.datasets.studies import read_study
from autosync.search.effort import Effort
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
LONGEST_SECONDS = 0.4
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
        tune(resume="s", num_trials=num_trials, patience=None)
    else:
        # Killed before it had its settings: there is nothing to go on with.
        if Path(STUDY).exists():
            Path(STUDY).rename(f"{STUDY}-{random.randrange(10**9)}")
        tune(
            model="model.yaml",
            cluster="pair.yaml",
            study="s",
            proposer="evolution",
            num_trials=num_trials,
            effort=EFFORT,
            patience=None,
        )


def _killed(num_kills: int, num_trials: int) -> dict[str, object]:
    rng = random.Random(11)
    kept: dict[int, str | None] = {}
    num_died = num_lost = 0
    for _ in range(num_kills):
        moment = rng.uniform(0.01, LONGEST_SECONDS)

        def work(moment: float = moment) -> None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, moment)
            _tune_on(num_trials)

        _, status = os.waitpid(_fork(work), 0)
        num_died += os.WIFSIGNALED(status)
        if Path(STUDY, "journal.log").exists():
            records = {one.trial: one.strategy_id for one in read_study(STUDY, report=lambda _: None)}
            num_lost += sum(records.get(number, "none") != identity for number, identity in kept.items())
            kept = records
    _, status = os.waitpid(_fork(lambda: _tune_on(num_trials)), 0)
    final = [one.strategy_id for one in read_study(STUDY)]
    return {
        "num_died": num_died,
        "num_lost": num_lost,
        "ended_well": status == 0,
        "num_records": len(final),
        "num_repeated": len(final) - len(set(final)),
        "has_best": Path(STUDY, "best.yaml").exists(),
    }


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
            num_trials=num_trials,
            effort=EFFORT,
            patience=None,
            storage=url,
        )

    processes = [_fork(lambda place=place: work(place)) for place in ("here", "there")]  # type: ignore[misc]
    ended_well = [os.waitpid(process, 0)[1] == 0 for process in processes]
    study = optuna.load_study(study_name="s", storage=open_storage(url))
    found = [trial for trial in study.get_trials() if "record" in trial.user_attrs]
    ids = [trial.user_attrs["record"].get("strategy_id") for trial in found]
    return {
        "ended_well": all(ended_well),
        "num_records": len(ids),
        "num_repeated": len(ids) - len(set(ids)),
        "num_tuners": len({trial.user_attrs["tuner"] for trial in found}),
        "num_unfinished": sum(trial.state.name == "RUNNING" for trial in study.get_trials()),
    }


def main() -> None:
    what, folder, first, second = sys.argv[1:]
    os.chdir(folder)
    autosync.search.plan.TrialService = lambda **_: _Service({})  # type: ignore[assignment,misc]
    _write_specs()
    result = _killed(int(first), int(second)) if what == "killed" else _together(first, int(second))
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
