"""Tunes on real ranks of this machine, strikes at random moments inside trials, and prints the results.

    python struck_main.py FOLDER NUM_STRIKES

Each strike is a run of `autosync tune` on the same study, in a fork of this process, because everything is imported
once. At a random moment after the ranks of a trial have started, a signal is sent to the tuner or to a rank. A tuner
that survives is asked to end after the struck trial. Then no process of the run may be left.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from autosync.cli import main as cli
from autosync.datasets.storage import close_storage, open_journal
from autosync.datasets.studies import read_study
from autosync.search.candidates import candidate_of
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import save_cluster

STUDY = Path("autosync-studies/s")
TASK = f"{Path(__file__).with_name('tiny.py')}:slow_in_trials"
"""A trial of it takes a second: most of the strikes are meant for its steps."""
STRIKES = (
    ("tuner", signal.SIGINT),
    ("rank", signal.SIGKILL),
    ("tuner", signal.SIGKILL),
    ("tuner", signal.SIGTERM),
    ("rank", signal.SIGSTOP),
)
LATEST_SECONDS = 1.0
"""The latest moment of a strike after a trial was seen to be under way."""
NUM_PASSED = 3
"""In one of so many trials of a run it is struck; in the first of them ranks start, load the task and meet."""
TRIAL_SECONDS = 15
"""The limit of each request to the ranks: so long one that is stopped is waited for."""
LIMIT_SECONDS = 90.0
GONE_SECONDS = 100.0
"""A rank whose service goes while it still loads torch ends when it has: on a busy machine that takes a while."""
NUM_AHEAD = 8
"""So many more trials than there are each run wants: enough to be struck in one of them."""


def _tune(*options: str) -> int:
    """A run of the command in a process of its own, a group's first as a shell's are."""
    process = os.fork()
    if process:
        return process
    code = 99
    try:
        os.setsid()
        with Path("told.txt").open("a") as told:
            os.dup2(told.fileno(), 1)
            os.dup2(told.fileno(), 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = cli.run(["tune", *options])
    except BaseException:  # noqa: BLE001 - told, and then the process ends
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _begin() -> None:
    node = Node(name="this", host="localhost", devices=2, bandwidth_out=1e9, bandwidth_in=1e9)
    save_cluster(Path("pair.yaml"), ClusterSpec(name="pair", nodes=(node,)))


def _run(num_trials: int) -> int:
    common = ("--trials", str(num_trials), "--patience", "0", "--effort", "quick")
    if (STUDY / "study.json").exists():
        return _tune("--resume", "s", *common)
    new = ("--study", "s", "--proposer", "random", "--trial-timeout", f"{TRIAL_SECONDS}s")
    return _tune(TASK, "--cluster", "pair.yaml", *new, *common)


def _trials() -> list[Any]:
    if not (STUDY / "journal.log").exists():
        return []
    storage = open_journal(STUDY / "journal.log")
    try:
        return optuna.load_study(study_name="s", storage=storage).get_trials()
    except KeyError:
        return []
    finally:
        close_storage(storage)


def _under_way(processes: list[int]) -> int | None:
    """The trial that runs, where its ranks are there as well."""
    if len(processes) != 2:
        return None
    running = [trial.number for trial in _trials() if trial.state == TrialState.RUNNING]
    return running[-1] if running else None


def _ranks() -> list[int]:
    """The processes of ranks that work in this folder, but for those that are still to load what they need."""
    found = []
    for process in _here():
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            loaded = b"libtorch_cpu" in Path(f"/proc/{process}/maps").read_bytes()
        except OSError:
            continue
        if b"autosync.trials.rank_worker" in words and loaded:
            found.append(process)
    return found


def _here() -> list[int]:
    """All processes but this one that work in this folder."""
    here, found = str(Path.cwd()), []
    for place in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if str(place.readlink()) == here and int(place.parent.name) != os.getpid():
                found.append(int(place.parent.name))
        except OSError:
            # It ended while we looked.
            continue
    return found


def _await_end(process: int) -> int | None:
    """How a tuner ended, as a shell has it; None if it does not in time, and then it is ended."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def _await_none_left() -> int:
    deadline = time.monotonic() + GONE_SECONDS
    while (left := _here()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in left:
        os.kill(process, signal.SIGKILL)
    return len(left)


def _strike(victim: str, number: signal.Signals, lots: random.Random) -> dict[str, Any]:
    """One run that is struck inside a trial."""
    num_before = _num_measured()
    tuner = _run(num_before + NUM_AHEAD)
    deadline = time.monotonic() + LIMIT_SECONDS
    num_passed = lots.randrange(NUM_PASSED)
    while time.monotonic() < deadline and _is_alive(tuner):
        time.sleep(0.02)
        if _under_way(_ranks()) is not None and _num_measured() >= num_before + num_passed:
            break
    time.sleep(lots.uniform(0.0, LATEST_SECONDS))
    ranks = _ranks()
    running = _under_way(ranks)
    victims = [tuner] if victim == "tuner" else sorted(ranks)
    is_struck = running is not None and _is_alive(tuner)
    if is_struck:
        os.kill(lots.choice(victims), number)
    if victim == "rank":
        while running is not None and time.monotonic() < deadline and _is_running(running):
            time.sleep(0.05)
        os.kill(tuner, signal.SIGINT)
    code = _await_end(tuner)
    told = {"victim": victim, "signal": number.name, "code": code, "left": _await_none_left()}
    return {**told, "is_struck": is_struck, "num_passed": num_passed}


def _num_measured() -> int:
    return sum(trial.state == TrialState.COMPLETE for trial in _trials())


def _is_alive(process: int) -> bool:
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _is_running(number: int) -> bool:
    return any(trial.number == number and trial.state == TrialState.RUNNING for trial in _trials())


def main() -> None:
    folder, num_strikes = sys.argv[1], int(sys.argv[2])
    os.chdir(folder)
    _begin()
    lots = random.Random(17)
    strikes = []
    for number in range(num_strikes):
        strikes.append(_strike(*STRIKES[number % len(STRIKES)], lots))
        sys.stderr.write(f"{strikes[-1]}\n")
    ended = _await_end(_run(_num_measured() + 1))
    records = list(read_study(STUDY))
    failed = [record for record in records if record.failure is not None]
    summary = json.loads((STUDY / "summary.json").read_bytes()) if ended == 0 else {}
    result = {
        "strikes": strikes,
        "ended": ended,
        "left": _await_none_left(),
        "kinds": dict(Counter(record.failure.kind for record in failed if record.failure is not None)),
        "charged": [
            f"{candidate_of(record).name}: {record.failure.kind}: {record.failure.message}"
            for record in failed
            if record.failure is not None and not record.failure.is_infrastructure
        ],
        "num_failed_trials": summary.get("num_failed_trials"),
        "num_outages": summary.get("num_outages"),
        "told": Path("told.txt").read_text()[-3000:],
    }
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
