"""Causes on the ranks themselves: computation, a slow rank, slow input, other programs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from autosync.doctor.evidence import Processors
from autosync.doctor.findings import Abstention, CauseFinding, WatchedCase
from autosync.doctor.timing import Lateness, Phase, lateness_of
from autosync.specs.background_load import BUSY_SHARE
from autosync.strategy.wording import abbreviated, count
from autosync.units import format_time

MOST_STEPS = 0.8
"""Ranks count as slow if one of them is the last one in this share of the steps."""

_TOLD_SHARE = 0.05
"""The smallest share of the input's time for which waiting for a DataLoader is told."""

_IN_PHASE: Mapping[Phase, str] = {
    "input": "between its passes (input, logging, clipping)",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "update": "in the optimizer's update",
}


def computation(case: WatchedCase) -> CauseFinding:
    """Return the time of forward pass, backward pass and update on a typical rank."""
    timing = case.timing
    forward = timing.typical(lambda parts: parts.forward)
    backward = timing.typical(lambda parts: parts.backward)
    update = timing.typical(lambda parts: parts.update + parts.handover)
    told = f"forward {format_time(forward)}, backward {format_time(backward)}, update {format_time(update)}"
    return CauseFinding(seconds=forward + backward + update, told=told)


def slow_rank(case: WatchedCase) -> CauseFinding | Abstention:
    """Return the time that other ranks wait for the rank, or the ranks, that have their gradients last."""
    late = lateness_of(case.evidence, case.timing)
    if late is None:
        return Abstention(reason="one rank has no other to be compared with")
    if late.steps_share < MOST_STEPS:
        return CauseFinding(seconds=0.0, told="no rank is the last one in most steps")
    # If the late rank waits for input, it does so in few steps, and the others wait for it in these.
    waited = case.timing.mean_of_shortest(lambda parts: parts.wait + parts.buffers + parts.handover, late.others)
    places = _places(case, late)
    subject = abbreviated(places)
    told = (
        f"{subject} {'works' if len(places) == 1 else 'work'} {format_time(late.seconds)} longer than the others, most "
        f"of it {_IN_PHASE[late.phase]}"
    )
    if late.messages_share > 0.5:
        told += f"; {late.messages_share:.0%} of the messages were ready last there"
    seconds = min(late.seconds, waited) - _waited_more(case, late)
    return CauseFinding(seconds=max(seconds, 0.0), told=told, subject=subject)


def _places(case: WatchedCase, late: Lateness) -> list[str]:
    """Return the late ranks with their nodes. A node stands for its ranks if all of them are late."""
    nodes, found = case.evidence.nodes, []
    for node in dict.fromkeys(nodes[rank] for rank in late.ranks):
        same = [rank for rank, its in enumerate(nodes) if its == node]
        is_whole = len(same) > 1 and set(same) <= set(late.ranks)
        found += [node] if is_whole else [f"rank {rank} on {node}" for rank in same if rank in late.ranks]
    return found


def _waited_more(case: WatchedCase, late: Lateness) -> float:
    """Return how much longer late ranks waited for processors than the others. Other programs cause such waits."""
    shares = [_waited_share(one.processors) for one in case.evidence.ranks]
    own, others = (statistics.median(shares[rank] for rank in ranks) for ranks in (late.ranks, late.others))
    return max(own - others, 0.0) * case.timing.step_seconds


def _waited_share(use: Processors | None) -> float:
    """Return the share of time in which a rank waited for a processor; 0 if the system does not tell."""
    return 0.0 if use is None or use.waited_seconds is None else use.waited_seconds / use.seconds


def slow_input(case: WatchedCase) -> CauseFinding:
    """Return the time that every rank spends outside passes and update."""
    seconds = case.timing.shortest(lambda parts: parts.input)
    loader = case.timing.shortest(lambda parts: parts.loader)
    told = f"every rank spends {format_time(seconds)} of a step outside its passes and the update"
    if loader >= _TOLD_SHARE * seconds:
        workers = case.evidence.ranks[0].settings.num_workers
        told += f", {format_time(loader)} of it waiting for its DataLoader"
        told += "" if workers is None else f" ({count(workers, 'worker') if workers else 'no workers'})"
    return CauseFinding(seconds=seconds, told=told)


def other_programs(case: WatchedCase) -> CauseFinding | Abstention:
    """Return the time that ranks of the busiest machine waited for processors which other programs used."""
    evidence = case.evidence
    machines: dict[str, list[int]] = {}
    for number, one in enumerate(evidence.ranks):
        if one.processors is None:
            return Abstention(reason="a machine does not tell what its processors do")
        machines.setdefault(one.processors.machine, []).append(number)
    found = CauseFinding(seconds=0.0, told="other programs use little of the processors")
    for ranks in machines.values():
        uses = [use for number in ranks if (use := evidence.ranks[number].processors) is not None]
        others, own = _shares(uses)
        if others < BUSY_SHARE:
            continue
        if any(use.waited_seconds is None for use in uses):
            return Abstention(reason="the system does not tell how long ranks waited for processors")
        waited = max(map(_waited_share, uses)) * case.timing.step_seconds
        seconds = min(waited * others / (others + own), case.timing.step_seconds)
        names = abbreviated(list(dict.fromkeys(evidence.nodes[number] for number in ranks)))
        told = (
            f"other programs use {others:.0%} of the processors of {names}; "
            f"its ranks wait {format_time(waited)} a step for a free one"
        )
        if seconds >= found.seconds:
            found = CauseFinding(seconds=seconds, told=told, subject=names)
    return found


def _shares(uses: Sequence[Processors]) -> tuple[float, float]:
    """Return the share of a machine's processors that programs other than its ranks use, and the ranks' own."""
    own = sum(use.own for use in uses)
    others = statistics.median(use.others - (own - use.own) for use in uses)
    return min(max(others, 0.0), 1.0), own
