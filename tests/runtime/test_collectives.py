"""Native collectives, among real processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autosync.plan.types import Transfer
from autosync.runtime.collectives import is_native

HERE = Path(__file__).parent
NUM_RANKS = 4
CASES = ("native_collectives", "a_dead_peer_of_a_native_collective")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each rank answered to each case: all in one launch, for processes take seconds to start."""
    folder = tmp_path_factory.mktemp("collectives")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    command = (sys.executable, HERE / "wire_main.py", folder, str(NUM_RANKS), *CASES)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    told = [json.loads((folder / f"answers-{rank}.json").read_text()) for rank in range(NUM_RANKS)]
    return {case: [rank[number] for rank in told if number < len(rank)] for number, case in enumerate(CASES)}


def test_results_of_every_collective_and_type(answers):
    assert answers["native_collectives"] == [[]] * NUM_RANKS


def test_a_dead_peer_is_an_error(answers):
    dead = answers["a_dead_peer_of_a_native_collective"]
    assert len(dead) == NUM_RANKS - 1
    assert all(error.startswith("native all_reduce: ") for error in dead)


@pytest.mark.parametrize(
    ("collective", "algorithm", "expected"),
    [
        ("all_reduce", "native", True),
        ("reduce", "native", True),
        ("broadcast", "native", True),
        ("all_reduce", "ring", False),
        ("reduce_scatter", "native", False),
        ("all_gather", "native", False),
        ("all_gather_v", "native", False),
    ],
)
def test_which_transfers_gloo_carries_out(collective, algorithm, expected):
    transfer = Transfer(
        collective=collective,
        algorithm=algorithm,
        groups=((0, 1),),
        regions=(0,),
        num_elements=8,
        max_elements=8,
        item_bytes=4,
        within=(),
        lane=0,
        priority=0,
        message=0,
        after=(),
    )
    assert is_native(transfer) is expected
