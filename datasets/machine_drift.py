"""Drift of the machine, seen by a strategy that is measured again and again.

A campaign repeats one strategy of each combination of model and cluster, its reference, before and after a stretch of
trials. Whatever stands between two references of which one took another time than usual may be off by as much.

Some strategies have more than one usual time: what transfers leave over for the next step makes some steps long and
others short, now in this order and now in that. Such times take turns, as those of a machine that drifts do not: of two
references that follow one another the faster one is at the lower of them as a rule, and the slower one at the upper.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from autosync.datasets.schema import Flag, Record

REFERENCE_ORIGIN = "reference"
AGAIN_ORIGIN = "again"
"""Of trials of strategies that were tried before, for a better figure of them."""

DRIFT_SHARE = 0.05
"""How far a reference may be from its usual times, as a share of them."""

Combination = tuple[str, str]


def combination_of(record: Record) -> Combination:
    """What was trained where: the specs' hashes, or, in records without them, their fingerprints."""
    return (record.model_spec or record.model_fingerprint, record.cluster_spec or record.cluster_fingerprint)


def is_reference(record: Record) -> bool:
    """Whether a record is a reference that has a time."""
    return record.origin == REFERENCE_ORIGIN and record.measurement is not None


def flag_drift(records: Iterable[Record], *, share: float = DRIFT_SHARE) -> list[Record]:
    """The records, in their order, flagged `drifting_machine` where a reference next to them is off.

    Next to a record of a combination are the last reference of that combination before it and the first after it, in
    the order of time; usual are the times from the median of the faster of any two that follow one another to the
    median of the slower. A flag from an earlier look is taken off first.
    """
    everything = list(records)
    places: dict[tuple[str, Combination], list[int]] = defaultdict(list)
    for position, record in enumerate(everything):
        places[record.study, combination_of(record)].append(position)
    for found in places.values():
        found.sort(key=lambda position: (everything[position].started, everything[position].trial))
        drifting = _drifting([everything[position] for position in found], share)
        for position, is_drifting in zip(found, drifting, strict=True):
            everything[position] = _flagged(everything[position], is_drifting=is_drifting)
    return everything


def without_drift(record: Record) -> Record:
    """A record as it was before anybody looked for drift."""
    return _flagged(record, is_drifting=False)


def _drifting(records: Sequence[Record], share: float) -> list[bool]:
    seconds = [
        record.measurement.median_seconds if is_reference(record) and record.measurement is not None else None
        for record in records
    ]
    known = [one for one in seconds if one is not None]
    low, high = _usual(known)
    is_off = [one is not None and not (1 - share) * low <= one <= (1 + share) * high for one in seconds]
    before, after = [False] * len(records), [False] * len(records)
    for order, found in ((range(len(records)), before), (reversed(range(len(records))), after)):
        last = False
        for position in order:
            if seconds[position] is not None:
                last = is_off[position]
            found[position] = last
    return [off if one is not None else (b or a) for off, one, b, a in zip(is_off, seconds, before, after, strict=True)]


def _usual(seconds: Sequence[float]) -> tuple[float, float]:
    pairs = list(itertools.pairwise(seconds)) or [(one, one) for one in seconds] or [(0.0, 0.0)]
    return statistics.median(map(min, pairs)), statistics.median(map(max, pairs))


def _flagged(record: Record, *, is_drifting: bool) -> Record:
    measurement = record.measurement
    if measurement is None or is_drifting == ("drifting_machine" in measurement.flags):
        return record
    others = tuple(flag for flag in measurement.flags if flag != "drifting_machine")
    flags: tuple[Flag, ...] = (*others, "drifting_machine") if is_drifting else others
    return replace(record, measurement=replace(measurement, flags=flags))
