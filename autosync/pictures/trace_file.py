"""Reads timelines: Chrome traces as the runtime and the simulators write them, and the steps in them.

A trace is an array of events, or an object with an array `traceEvents`. If a crash cut the array off, it is read as far
as it goes. All times in this package are seconds.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from autosync.disk_errors import open_input
from autosync.errors import DocumentError, InputError, Problem
from autosync.near_files import missing_file
from autosync.pictures.trace_events import NoTraceError, read_events

MAX_RANKS = 10_000
NUM_WARMUP = 3
"""The number of first steps that are avoided if there are others, because connections and buffers are made in them."""

_COMPUTE, _WAIT = "compute", "wait"
KINDS = (_COMPUTE, _WAIT, "transfer", "local")
_RULE = "a timeline is a Chrome trace as `parallelize(trace=...)` writes it"


class Span(NamedTuple):
    """A span of time on one track of one rank."""

    kind: str
    name: str
    track: int
    start: float
    end: float
    iteration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """The trace of one rank: its name, its tracks by number, and all spans in the order of their starts."""

    name: str
    tracks: Mapping[int, str]
    spans: tuple[Span, ...]


class TracedStep(NamedTuple):
    """One step of training, from the start of its compute to that of the next step."""

    iteration: int
    start: float
    end: float


def read_trace(path: Path | str) -> tuple[RankTrace, ...]:
    """Return the ranks of a trace file, in the order of their numbers."""
    file = str(path)
    try:
        with open_input(Path(path)) as stream:
            return ranks_of(read_events(stream), file=file)
    except NoTraceError as error:
        raise _refused(error.what, file, rule=error.rule or _RULE) from error
    except FileNotFoundError as error:
        raise DocumentError([missing_file(path)]) from error
    except (OSError, ValueError) as error:
        raise _refused(f"cannot be read: {getattr(error, 'strerror', None) or error}", file) from error


def ranks_of(events: Iterable[Mapping[str, Any]], *, file: str = "") -> tuple[RankTrace, ...]:
    """Return the ranks of a trace's events, in the order of their numbers. `file` is named in errors."""
    ranks: dict[int, _Rank] = {}
    for event in events:
        pid = event.get("pid")
        if isinstance(pid, int):
            if pid not in ranks:
                _refuse_more(len(ranks))
                ranks[pid] = _Rank(pid)
            ranks[pid].take(event, file)
    found = [ranks[number].trace() for number in sorted(ranks)]
    shown = tuple(rank for rank in found if rank.spans)
    if not shown:
        raise _refused("nothing of training is in it", file)
    return shown


def _refuse_more(num_ranks: int) -> None:
    if num_ranks >= MAX_RANKS:
        raise NoTraceError("it has too many ranks", f"at most {MAX_RANKS:,} ranks")


def steps_of(rank: RankTrace) -> tuple[TracedStep, ...]:
    """Return the complete steps of a trace. The end of the last step is unknown, so it counts only if it is alone."""
    starts: dict[int, float] = {}
    for span in rank.spans:
        if span.kind == _COMPUTE:
            starts.setdefault(span.iteration, span.start)
    order = sorted(starts.items(), key=lambda item: item[1])
    ends = [start for _, start in order[1:]]
    if len(order) == 1:
        ends = [max(span.end for span in rank.spans)]
    return tuple(TracedStep(number, start, end) for (number, start), end in zip(order, ends, strict=False))


def choose_steps(rank: RankTrace, num_steps: int, *, first: int | None = None) -> tuple[TracedStep, ...]:
    """Return consecutive steps: from iteration `first`, or typical ones.

    Typical steps are about as long as most, chosen among those with the most transfers. So if workers synchronise only
    every few steps, a step that does is shown.
    """
    steps = steps_of(rank)
    if not steps:
        raise InputError("the trace shows no step", rule="a step has compute: forward, backward, optimizer")
    if first is not None:
        chosen = tuple(step for step in steps if first <= step.iteration < first + num_steps)
        if len(chosen) < num_steps:
            known = f"{steps[0].iteration} to {steps[-1].iteration}"
            what = f"the trace does not have the {num_steps} steps from {first} on"
            raise InputError(what, rule=f"whole in it are the steps {known}")
        return chosen
    num_steps = min(num_steps, len(steps))
    steady = steps[NUM_WARMUP:] if len(steps) >= NUM_WARMUP + num_steps else steps
    windows = [steady[place : place + num_steps] for place in range(len(steady) - num_steps + 1)]
    starts = sorted(span.start for span in rank.spans if span.kind == "transfer")
    busy = [bisect_left(starts, window[-1].end) - bisect_left(starts, window[0].start) for window in windows]
    enough = 0.9 * max(busy)
    windows = [window for window, number in zip(windows, busy, strict=True) if number >= enough]
    usual = statistics.median(window[-1].end - window[0].start for window in windows)
    return min(windows, key=lambda window: abs(window[-1].end - window[0].start - usual))


class _Rank:
    """Collects a rank's events and keeps those that are shown."""

    def __init__(self, number: int) -> None:
        self._name = f"rank {number}"
        self._tracks: dict[int, str] = {}
        self._spans: list[Span] = []

    def take(self, event: Mapping[str, Any], file: str) -> None:
        arguments = event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        if event.get("ph") == "M" and event.get("name") == "process_name":
            self._name = str(arguments.get("name", self._name))
        elif event.get("ph") == "M" and event.get("name") == "thread_name" and isinstance(event.get("tid"), int):
            self._tracks[event["tid"]] = str(arguments.get("name", ""))
        elif event.get("ph") == "X" and event.get("cat") in KINDS:
            self._spans.append(_span(event, arguments, file))

    def trace(self) -> RankTrace:
        """Return everything collected."""
        spans = sorted(self._spans, key=lambda span: (span.start, span.track))
        return RankTrace(name=self._name, tracks=self._tracks, spans=tuple(spans))


def _span(event: Mapping[str, Any], arguments: Mapping[str, Any], file: str) -> Span:
    start, duration, track, iteration = event.get("ts"), event.get("dur"), event.get("tid"), arguments.get("iteration")
    if not (_is_time(start) and _is_time(duration) and isinstance(track, int) and isinstance(iteration, int)):
        raise _refused(f"the event {str(event.get('name'))[:60]!r} lacks ts, dur, tid or its iteration", file)
    begin = float(start) / 1e6  # type: ignore[arg-type]
    end = begin + float(duration) / 1e6  # type: ignore[arg-type]
    return Span(str(event["cat"]), str(event.get("name", "")), track, begin, end, iteration)


def _is_time(value: object) -> bool:
    # NaN fails every comparison.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


def _refused(what: str, file: str, *, rule: str = _RULE) -> DocumentError:
    return DocumentError([Problem(what=what, rule=rule, file=file, line=1)])
