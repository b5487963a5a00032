"""Causes on the way between nodes: exposed communication, slow links and uplinks, a wrong interface."""

from __future__ import annotations

from typing import Literal

from autosync.doctor.evidence import RankEvidence
from autosync.doctor.findings import Abstention, CauseFinding, WatchedCase
from autosync.doctor.timing import synchronised
from autosync.strategy.wording import abbreviated
from autosync.units import format_rate, format_size, format_time

_SLOW = 0.87
"""A link is slow if its rate is less than this share of its expected rate."""

_UNMEASURED = "the links were not measured"
NO_LINKS = "the cluster has one node, so no link is used"


def exposed_communication(case: WatchedCase) -> CauseFinding | Abstention:
    """Return the time in which no rank computes and all wait for transfers."""
    if case.timing.num_ranks < 2:
        return CauseFinding(seconds=0.0, told="one rank sends nothing")
    step = case.evidence.ranks[0].steps[-1]
    sizes = [message.num_bytes for one in synchronised(step) for message in one.messages]
    if not sizes:
        return Abstention(reason="no message was seen: the script's gradients go another way than DDP's buckets")
    told = (
        f"after its backward pass even the last rank waits {format_time(case.timing.exposed)} for messages "
        f"({len(sizes)} a step, {format_size(sum(sizes))})"
    )
    return CauseFinding(seconds=case.timing.exposed, told=told)


def slow_link(case: WatchedCase) -> CauseFinding | Abstention:
    """Return the exposed time that the slowest node's link causes."""
    return _slowest(case, "node", "link")


def slow_uplink(case: WatchedCase) -> CauseFinding | Abstention:
    """Return the exposed time that the slowest rack's uplink causes."""
    return _slowest(case, "uplink", "uplink")


def _slowest(case: WatchedCase, kind: Literal["node", "uplink"], name: str) -> CauseFinding | Abstention:
    evidence = case.evidence
    if len(set(evidence.nodes)) < 2:
        return CauseFinding(seconds=0.0, told=NO_LINKS)
    if not evidence.links:
        return Abstention(reason=evidence.doubt or _UNMEASURED)
    links = [link for link in evidence.links if link.kind == kind]
    if not links:
        return CauseFinding(seconds=0.0, told="no uplink lies between workers")
    worst = min(links, key=lambda link: link.rate / link.expected)
    lowest = min(link.rate for link in evidence.links)
    share = worst.rate / worst.expected
    if share >= _SLOW or worst.rate > lowest / _SLOW:
        if unmeasured := list(dict.fromkeys(link.subject for link in links if not link.is_measured)):
            # After a probe: it leaves out the rates of links that it could not fill.
            unfilled = f"the others cannot fill the {name} of {abbreviated(unmeasured)}, so its rate is not known"
            return Abstention(reason=evidence.doubt or (unfilled if evidence.is_probed else _UNMEASURED))
        return CauseFinding(seconds=0.0, told=f"no {name} is slower than expected")
    how = "measured" if worst.is_measured else "by the cluster file"
    told = (
        f"{worst.subject} has {format_rate(worst.rate)} {worst.direction} ({how}), "
        f"where {worst.compared} {format_rate(worst.expected)}"
    )
    return CauseFinding(seconds=case.timing.exposed * (1 - share), told=told, subject=worst.subject)


def wrong_interface(case: WatchedCase) -> CauseFinding | Abstention:
    """Return the exposed time if a node's traffic takes the wrong interface."""
    evidence = case.evidence
    if len(set(evidence.nodes)) < 2:
        return CauseFinding(seconds=0.0, told=NO_LINKS)
    strays = [number for number, one in enumerate(evidence.ranks) if _is_astray(one)]
    if strays:
        traffic = evidence.ranks[strays[0]].traffic
        assert traffic is not None, "it is known to be astray"
        names = abbreviated(list(dict.fromkeys(evidence.nodes[number] for number in strays)))
        told = f"gradients go over {traffic.used} of {names}, where the launcher chose {traffic.chosen}"
        return CauseFinding(seconds=case.timing.exposed, told=told, subject=names)
    if evidence.wrong_interfaces:
        node, message = evidence.wrong_interfaces[0]
        return CauseFinding(seconds=case.timing.exposed, told=f"{node}: {message}", subject=node)
    if evidence.is_probed:
        return CauseFinding(seconds=0.0, told="each node uses the interface that it should")
    return Abstention(reason=evidence.doubt or "the interfaces were not watched")


def _is_astray(rank: RankEvidence) -> bool:
    """Return whether a rank's gradients passed another interface than the chosen one.

    An all-reduce brings at least as many bytes through the interface as the messages have. So a chosen interface that
    carried fewer cannot have carried them.
    """
    traffic = rank.traffic
    if traffic is None or traffic.used in traffic.chosen.split(","):
        return False
    sent = sum(message.num_bytes for step in rank.steps for one in step.passes for message in one.messages)
    return traffic.used_bytes >= sent > traffic.chosen_bytes
