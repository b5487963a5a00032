"""Hosts as people write them."""

from __future__ import annotations

import pytest

from autosync.errors import InputError
from autosync.specs.host_lists import MAX_HOSTS, expand_hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ("a",)),
        ("a b", ("a", "b")),
        (" a,b ,  c\n", ("a", "b", "c")),
        ("10.0.0.1 fe80::1", ("10.0.0.1", "fe80::1")),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[08-10]", ("n08", "n09", "n10")),
        ("n[1,3, 5-6]x, m", ("n1x", "n3x", "n5x", "n6x", "m")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("a a", ("a", "a")),
    ],
)
def test_a_list_is_expanded_in_its_order(text: str, hosts: tuple[str, ...]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no host is named"),
        (" , ", "no host is named"),
        ("n[1-", "is no list of hosts"),
        ("n]1", "is no list of hosts"),
        ("n[]", "is no range of hosts"),
        ("n[a-b]", "is no range of hosts"),
        ("n[3-1]", "ends before it begins"),
        ("me@gpu1", "put user, port and key into ~/.ssh/config"),
        (f"n[0-{MAX_HOSTS}]", f"at most {MAX_HOSTS} hosts"),
        ("n[0-999999999]", f"at most {MAX_HOSTS} hosts"),
    ],
)
def test_mistakes_say_what_would_be_right(text: str, told: str) -> None:
    with pytest.raises(InputError, match="host") as error:
        expand_hosts(text)
    assert told in str(error.value.problems[0])
