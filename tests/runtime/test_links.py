"""A session's connections, among real processes."""

import re

from autosync.runtime.wire.links import said

NUM_RANKS = 4
CASES = (
    "messages_keep_the_order_of_their_tag",
    "native_groups_of_some_members",
    "groups_are_made_when_all_ranks_have_made_theirs",
    "close_gives_everything_back",
    "sessions_have_names_of_their_own",
    "abort_ends_all_waits",
)


def test_messages_of_a_tag_keep_their_order_whatever_the_order_of_tags(wire_answers):
    expected = {f"{tag}.{n}": 10.0 * tag + n for tag in (5, 6) for n in range(3)}
    assert wire_answers["messages_keep_the_order_of_their_tag"] == [expected] * NUM_RANKS


def test_native_groups_have_the_members_that_were_asked_for(wire_answers):
    every, pair = {"(0, 1, 2, 3)": 6.0}, {"(0, 1, 2, 3)": 6.0, "(3, 1)": 4.0}
    assert wire_answers["native_groups_of_some_members"] == [every, pair, every, pair]


def test_groups_are_made_when_all_ranks_have_made_theirs(wire_answers):
    assert wire_answers["groups_are_made_when_all_ranks_have_made_theirs"] == [True] * NUM_RANKS


def test_close_leaves_no_thread_and_no_socket(wire_answers):
    expected = [0, 0, "the connections of this session are closed"]
    assert wire_answers["close_gives_everything_back"] == [expected] * NUM_RANKS


def test_every_session_of_a_group_has_a_name_of_its_own(wire_answers):
    for rank, (names, stores) in enumerate(wire_answers["sessions_have_names_of_their_own"]):
        assert names == ["autosync/0/0,1,2,3/0", "autosync/0/0,1,2,3/1", "autosync/0/1,3/0"]
        assert stores[:2] == ["FileStore", True]
        assert stores[2:] == (["FileStore", [2.0, 2.0]] if rank in (1, 3) else [])


def test_abort_ends_the_waits_of_all_ranks(wire_answers):
    (first, *others) = wire_answers["abort_ends_all_waits"]
    assert first == [["message"], True]
    assert others == [[["collective", "message"], True]] * 3


def test_what_gloo_says_is_told_without_places_in_its_source():
    told = said(RuntimeError("[/build/gloo/tcp/pair.cc:553] Connection closed by peer [::1]:99. This is typically …"))
    assert told == "Connection closed by peer [::1]:99"
    assert said(RuntimeError("")) == "RuntimeError"
    assert not re.search(r"\.cc", said(RuntimeError("connect failed with [/gloo/pair.cc:1] no route\nmore")))
