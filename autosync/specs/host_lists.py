"""Lists of hosts as people write them: `gpu1 gpu2`, `gpu1,gpu2`, or `gpu[01-04,07]` as Slurm has it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autosync.errors import InputError

MAX_HOSTS = 4096

_RULE = "hosts are written gpu1 gpu2, or gpu[01-04,07] as Slurm has it"
# A host may have commas within its brackets.
_HOST = re.compile(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a list, in its order; a host that is named twice stands twice."""
    rest = _HOST.sub("", text).strip(" \t\r\n,")
    if rest:
        raise InputError(f"{text!r} is no list of hosts", rule=_RULE)
    hosts: list[str] = []
    for word in _HOST.findall(text):
        for host in _expanded(word):
            if len(hosts) == MAX_HOSTS:
                raise InputError(f"{text[:60]!r} are too many hosts", rule=f"at most {MAX_HOSTS} hosts")
            hosts.append(_checked(host))
    if not hosts:
        raise InputError("no host is named", rule=_RULE)
    return tuple(hosts)


def _expanded(word: str) -> Iterator[str]:
    """Yield the hosts of one word; the first brackets vary slowest."""
    match = _BRACKETS.search(word)
    if match is None:
        yield word
        return
    for number in _numbers(match[1]):
        yield from _expanded(f"{word[: match.start()]}{number}{word[match.end() :]}")


def _numbers(text: str) -> Iterator[str]:
    """Yield the numbers between brackets, each as wide as the beginning of its range."""
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise InputError(f"[{text}] is no range of hosts", rule=_RULE)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise InputError(f"[{text}] ends before it begins", rule=_RULE)
        yield from (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))


def _checked(host: str) -> str:
    if "@" in host:
        rule = "a host is a name or an address, without a user"
        raise InputError(f"{host} names a user", rule=rule, hint="put user, port and key into ~/.ssh/config")
    return host
