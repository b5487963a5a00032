"""Transfers on connections, among real processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autosync.runtime.exchange import Flow

HERE = Path(__file__).parent
NUM_RANKS = 4
CASES = (
    "every_collective",
    "members_in_another_order",
    "lanes_at_once",
    "contributions_of_any_length",
    "checks_pass_where_all_is_well",
    "checks_find_a_misordered_transfer",
    "a_dead_peer_is_an_error",
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each rank answered to each case: all in one launch, for processes take seconds to start."""
    folder = tmp_path_factory.mktemp("exchange")
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


def test_every_algorithm_type_and_size(answers):
    assert answers["every_collective"] == [[]] * NUM_RANKS


def test_the_first_member_is_the_root_whatever_its_rank(answers):
    assert answers["members_in_another_order"] == [[2.0, 2.0], [1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]


def test_lanes_of_several_priorities_and_a_native_one_at_once(answers):
    assert answers["lanes_at_once"] == [[]] * NUM_RANKS


def test_contributions_of_any_length_arrive_in_the_order_of_members(answers):
    assert answers["contributions_of_any_length"] == [[True, True, [0, 0, 0, 0]]] * NUM_RANKS


def test_checks_let_right_transfers_pass(answers):
    sums = [answer[0] for answer in answers["checks_pass_where_all_is_well"]]
    lengths = [answer[1] for answer in answers["checks_pass_where_all_is_well"]]
    assert sums == [[4.0, 4.0], [4.0, 1.0], [4.0, 1.0], [4.0, 1.0]]
    assert lengths == [[0, 1, 2, 3]] * NUM_RANKS


def test_checks_find_what_gloo_mixes_up_in_silence(answers):
    unchecked, checked = zip(*answers["checks_find_a_misordered_transfer"], strict=True)
    assert unchecked == (15.0,) * NUM_RANKS
    error = (
        "rank 3 on host-3 is in operation 3 of iteration 7 (transfer 0 of its lane), 32 bytes, and rank 2 on host-2 "
    )
    assert checked[3].startswith(error + "in operation 4 of iteration 7 (transfer 0 of its lane), 32 bytes")
    assert all(isinstance(told, str) for told in checked)


def test_a_dead_peer_is_named_within_the_time_limit(answers):
    dead = answers["a_dead_peer_is_an_error"]
    assert len(dead) == NUM_RANKS - 1
    for errors, in_time in dead:
        assert len(errors) == 1
        assert in_time
    # Who receives from the dead one can tell, the others hear it from whoever went next.
    assert "from rank 3 on host-3" in dead[0][0][0]


def test_a_window_makes_room_for_what_is_more_urgent():
    flow = Flow()
    with flow.active(3):
        alone, of_four = flow.window(3, 1), flow.window(3, 4)
        assert of_four == alone + 3
        with flow.active(1):
            assert (flow.window(3, 1), flow.window(3, 4)) == (1, 4)
            assert flow.window(1, 4) > of_four
            with flow.active(1):
                assert (flow.window(3, 1), flow.window(3, 4)) == (1, 4)
            assert (flow.window(3, 1), flow.window(3, 4)) == (1, 4)
        assert flow.window(3, 4) == of_four


def test_pieces_are_short_where_something_more_urgent_may_come():
    assert Flow().piece_bytes(1) < Flow().piece_bytes(0)
    assert Flow(most_urgent=1).piece_bytes(1) == Flow().piece_bytes(0)


def test_a_transfer_that_fails_is_no_longer_active():
    flow = Flow()
    with pytest.raises(ValueError, match="lost"), flow.active(0):
        raise ValueError("lost")
    with flow.active(2):
        assert flow.window(2, 1) > 1
