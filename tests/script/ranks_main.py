"""Runs scripts one after the other. Their ranks are forks of this process, because it has already imported torch.

Each input line is a run: `script`, `arguments`, `bundles` (none: the script runs as `python` runs it, under stock DDP),
`folder`, `key`, `steps_a_turn` (not 0: stock DDP and the bundles take turns of so many steps) and `num_observed` (not
0: so many steps are observed, and what was seen goes to `KEY-RANK.json`) and `num_tuned` (not 0: stock DDP trains so
many steps, and the bundle then goes on: as the winner of a tuning, or on trial if `is_over` is 0). The output of a rank
goes to `KEY-RANK.log` in the folder. The answer is a line of exit codes.
"""

import atexit
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._functorch.aot_autograd

import autosync.script.door
from autosync import run as door_main
from autosync.script.program import MainProgram
from autosync.script.switching_door import SwitchingDoor
from autosync.specs.model_file import dump_model
from autosync.specs.rank_variables import bundle_variable
from autosync.strategy.bundle import Bundle, load_bundle

NUM_RANKS = 2
LIMIT_SECONDS = 40.0


_ended_by: list[BaseException] = []
"""Keeps the script's objects until the functions that run at exit, as the end of a real process does."""


def _train(run: dict[str, Any], rank: int, port: int, folder: Path) -> int:
    """In a process of its own."""
    log = os.open(folder / f"{run['key']}-{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update({
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(NUM_RANKS), "LOCAL_WORLD_SIZE": str(NUM_RANKS),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
    })  # fmt: skip
    for number, path in enumerate(run["bundles"]):
        os.environ[bundle_variable(number)] = path
    # What `python -P -m autosync.run` has.
    arguments = [run["script"], *run["arguments"]]
    try:
        if run["num_observed"]:
            return _observe(arguments, run, rank)
        if run["num_tuned"]:
            return _train_by_winner(arguments, run)
        if run["steps_a_turn"]:
            return _train_in_turns(arguments, run)
        if run["bundles"]:
            return door_main.main(arguments)
        MainProgram(arguments).run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 - the test reads it
        traceback.print_exc()
        _ended_by.append(error)
        return 1
    return 0


class Turns:
    """Stock DDP and each of some bundles train for some steps in turn."""

    def __init__(self, bundles: list[Bundle], steps_a_turn: int) -> None:
        self._ways = [None, *bundles]
        self._steps_a_turn = steps_a_turn

    def step_begins(self, door: SwitchingDoor) -> None:
        turn, place = divmod(door.meter.num_steps, self._steps_a_turn)
        if place == 0:
            door.train_by(self._ways[turn % len(self._ways)])


class Winner:
    """Stock DDP trains some steps, and then a bundle, to the end of the script; with `is_over`, tuning is over then."""

    def __init__(self, bundle: Bundle, num_tuned: int, *, is_over: bool) -> None:
        self._bundle = bundle
        self._num_tuned = num_tuned
        self._is_over = is_over
        self.told: list[str] = []

    def step_begins(self, door: SwitchingDoor) -> None:
        if door.meter.num_steps == self._num_tuned:
            door.is_tuned = self._is_over
            door.train_by(self._bundle)
        if door.refusal is not None:
            self.told.append(str(door.refusal))
            door.refusal = None


class Look:
    """Observes the first steps of a script, and writes down what was seen."""

    def __init__(self, num_steps: int, path: Path) -> None:
        self._num_steps = num_steps
        self._path = path

    def step_begins(self, door: SwitchingDoor) -> None:
        number = door.meter.num_steps
        if number == 0:
            door.observe()
        elif number == self._num_steps:
            facts = door.facts("seen")
            self._path.write_text(json.dumps({"model": dump_model(facts.model), "reasons": facts.reasons}))


def _observe(arguments: list[str], run: dict[str, Any], rank: int) -> int:
    look = Look(run["num_observed"], Path(run["folder"]) / f"{run['key']}-{rank}.json")
    with SwitchingDoor(look).open():
        MainProgram(arguments).run()
    return 0


def _train_by_winner(arguments: list[str], run: dict[str, Any]) -> int:
    winner = Winner(load_bundle(run["bundles"][0]), run["num_tuned"], is_over=bool(run["is_over"]))
    with SwitchingDoor(winner).open():
        MainProgram(arguments).run()
    sys.stdout.write(f"{winner.told}\n")
    return 0


def _train_in_turns(arguments: list[str], run: dict[str, Any]) -> int:
    turns = Turns([load_bundle(path) for path in run["bundles"]], run["steps_a_turn"])
    with SwitchingDoor(turns).open():
        MainProgram(arguments).run()
    return 0


def _forked(run: dict[str, Any], rank: int, port: int, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = _train(run, rank, port, folder)
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _ended(pid: int, limit: float) -> int:
    while time.monotonic() < limit:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 124


def main() -> None:
    torch.set_num_threads(1)
    assert autosync.script.door.Door, "what is imported here need not be in each process"
    for line in sys.stdin:
        run = json.loads(line)
        port = _free_port()
        pids = [_forked(run, rank, port, Path(run["folder"])) for rank in range(NUM_RANKS)]
        limit = time.monotonic() + LIMIT_SECONDS
        sys.stdout.write(json.dumps([_ended(pid, limit) for pid in pids]) + "\n")
        sys.stdout.flush()


main()
