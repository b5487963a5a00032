"""Transfers on connections, among real processes."""

import pytest
import torch

from autosync.right_of_way import RankMarks
from autosync.runtime.wire.exchange import Coming, Exchange
from autosync.runtime.wire.flow_control import Flow
from autosync.runtime.wire.transfer_pieces import compile_pieces

NUM_RANKS = 4
CASES = (
    "every_collective",
    "over_trees",
    "members_in_another_order",
    "lanes_at_once",
    "a_lane_asks_for_what_comes_next",
    "contributions_of_any_length",
    "checks_pass_where_all_is_well",
    "checks_find_a_misordered_transfer",
    "a_dead_peer_is_an_error",
)


def test_every_algorithm_type_and_size(wire_answers):
    assert wire_answers["every_collective"] == [[]] * NUM_RANKS


def test_random_trees_and_shares(wire_answers):
    assert wire_answers["over_trees"] == [[]] * NUM_RANKS


def test_the_first_member_is_the_root_whatever_its_rank(wire_answers):
    assert wire_answers["members_in_another_order"] == [[2.0, 2.0], [1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]


def test_lanes_of_several_priorities_and_a_native_one_at_once(wire_answers):
    assert wire_answers["lanes_at_once"] == [[]] * NUM_RANKS


def test_contributions_of_any_length_arrive_in_the_order_of_members(wire_answers):
    assert wire_answers["contributions_of_any_length"] == [[True, True, [0, 0, 0, 0]]] * NUM_RANKS


def test_checks_let_right_transfers_pass(wire_answers):
    sums = [answer[0] for answer in wire_answers["checks_pass_where_all_is_well"]]
    lengths = [answer[1] for answer in wire_answers["checks_pass_where_all_is_well"]]
    assert sums == [[4.0, 4.0], [4.0, 1.0], [4.0, 1.0], [4.0, 1.0]]
    assert lengths == [[0, 1, 2, 3]] * NUM_RANKS


def test_checks_find_what_gloo_mixes_up_in_silence(wire_answers):
    unchecked, checked = zip(*wire_answers["checks_find_a_misordered_transfer"], strict=True)
    assert unchecked == (15.0,) * NUM_RANKS
    error = (
        "rank 3 on host-3 is in operation 3 of iteration 7 (transfer 0 of its lane), 32 bytes, and rank 2 on host-2 "
    )
    assert checked[3].startswith(error + "in operation 4 of iteration 7 (transfer 0 of its lane), 32 bytes")
    assert all(isinstance(told, str) for told in checked)


def test_a_dead_peer_is_named_within_the_time_limit(wire_answers):
    dead = wire_answers["a_dead_peer_is_an_error"]
    assert len(dead) == NUM_RANKS - 1
    for errors, in_time in dead:
        assert len(errors) == 1
        assert in_time
    # Who receives from the dead one can tell, the others hear it from whoever went next.
    assert "from rank 3 on host-3" in dead[0][0][0]


def test_a_window_makes_room_for_what_is_more_urgent():
    flow = Flow()
    with flow.active(3):
        alone, of_four = flow.window(3, 1, 5), flow.window(3, 4, 5)
        assert of_four == alone + 3
        with flow.active(1):
            assert (flow.window(3, 1, 5), flow.window(3, 4, 5)) == (1, 4)
            assert flow.window(1, 4, 5) > of_four
            with flow.active(1):
                assert (flow.window(3, 1, 5), flow.window(3, 4, 5)) == (1, 4)
            assert (flow.window(3, 1, 5), flow.window(3, 4, 5)) == (1, 4)
        assert flow.window(3, 4, 5) == of_four


def test_all_transfers_make_room_while_a_batch_is_awaited_that_goes_first():
    marks = RankMarks()
    flow = Flow(marks=marks)
    with flow.active(0):
        before = flow.window(0, 4, 5)
        with marks.awaiting_batch():
            assert flow.window(0, 4, 5) == before
        with marks.awaiting_batch(reads_first=True):
            assert (flow.window(0, 4, 5), flow.window(0, 0, 5)) == (4, 1)
        assert flow.window(0, 4, 5) == before


def test_reads_see_whether_transfers_are_under_way():
    marks = RankMarks()
    flow, seen = Flow(marks=marks), []
    seen.append(marks.messages_travel)
    with flow.active(3):
        with flow.active(1):
            seen.append(marks.messages_travel)
        seen.append(marks.messages_travel)
    seen.append(marks.messages_travel)
    assert seen == [False, True, True, False]
    with pytest.raises(OSError, match="broken"), flow.active(0):
        raise OSError("broken")
    assert not marks.messages_travel


def test_pieces_are_short_where_something_more_urgent_may_come():
    assert Flow().piece_bytes(1) < Flow().piece_bytes(0)
    assert Flow(most_urgent=1).piece_bytes(1) == Flow().piece_bytes(0)


def test_of_short_pieces_more_are_asked_for():
    """What is asked for has to last for as long as a request takes, whatever pieces are cut to."""
    flow = Flow(most_urgent=1)
    assert flow.ahead(1, 2**17) == 2 * flow.ahead(1, 2**18) > flow.ahead(1, 2**19) > 3
    assert flow.ahead(1, 2**30) == 3
    # What is more urgent would have to wait for as much.
    assert flow.ahead(2, 2**17) < flow.ahead(1, 2**17)


def test_transfers_that_are_asked_for_before_their_turn_are_right(wire_answers):
    for wrong, num_told in wire_answers["a_lane_asks_for_what_comes_next"]:
        assert wrong == []
        assert num_told > 10


class Noted:
    """Links of rank 1 that note what is asked for, sent and taken, by tag; each message is there at once."""

    rank = 1

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def send(self, _tensor, _member, tag):
        self.calls.append(("send", tag))
        return self

    def receive(self, _tensor, _member, tag):
        self.calls.append(("ask", tag))
        return _Arriving(self, tag)

    def wait(self):
        pass


class _Arriving:
    def __init__(self, links, tag):
        self.links, self.tag = links, tag

    def wait(self):
        self.links.calls.append(("take", self.tag))


def _home(tag, num_elements):
    """A broadcast of so many elements of which rank 1 gets all."""
    pieces = compile_pieces(
        "broadcast", "star", num_members=2, position=1, num_elements=num_elements, item_bytes=4, piece_bytes=2**19
    )
    return Coming(pieces, torch.zeros(num_elements), (0, 1), tag, 0)


def _run_all(transfers, *, checked=lambda: None):
    links = Noted()
    exchange, told = Exchange(links, Flow()), iter(transfers[1:])

    def following():
        checked()
        return next(told, None)

    for pieces, buffer, members, tag, priority in transfers:
        exchange.run(pieces, buffer, members=members, tag=tag, priority=priority, following=following)
    return links.calls


def test_what_comes_next_is_asked_for_before_the_last_of_what_goes_before_is_here():
    calls = _run_all([_home(tag, 100) for tag in range(6)])
    for tag in range(1, 6):
        assert calls.index(("ask", tag)) < calls.index(("take", tag - 1))
        assert calls.count(("ask", tag)) == calls.count(("take", tag)) == 1


def test_all_that_is_asked_for_ahead_is_one_window():
    large = 2**20 // 4 * 5
    calls = _run_all([_home(0, large), _home(1, large), _home(2, large)])
    under_way, most = 0, 0
    for what, _ in calls:
        under_way += {"ask": 1, "take": -1, "send": 0}[what]
        most = max(most, under_way)
    with (flow := Flow()).active(0):
        assert most == flow.window(0, 1, flow.ahead(0, 2**19))


def test_what_is_only_sent_keeps_nothing_waiting():
    """And is told once, however many there are."""
    pieces = compile_pieces("reduce", "star", num_members=2, position=1, num_elements=50, item_bytes=4)
    transfers = [Coming(pieces, torch.zeros(50), (0, 1), tag, 0) for tag in range(50)]
    num_asked = []
    calls = _run_all(transfers, checked=lambda: num_asked.append(1))
    assert calls == [("send", tag) for tag in range(50)]
    assert len(num_asked) < 3 * len(transfers)


def test_a_transfer_that_fails_is_no_longer_active():
    flow = Flow()
    with pytest.raises(ValueError, match="lost"), flow.active(0):
        raise ValueError("lost")
    with flow.active(2):
        assert flow.window(2, 1, 5) > 1
