"""Drift of the machine, detected by a strategy that is measured repeatedly.

A campaign measures one strategy of each combination of model and cluster, its reference, before and after each stretch
of trials. If a reference took an unusual time, the trials next to it may be wrong by as much.

Some strategies have more than one usual time: transfers that continue into the next step make some steps long and
others short, in an order that varies. These times alternate, while those of a drifting machine do not. So of two
consecutive references, the faster is usually at the lower time and the slower at the upper.
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
"""The origin of repeated trials of earlier strategies, for a better figure."""

DRIFT_SHARE = 0.05
"""The largest distance of a reference from its usual times, as a share of them."""

Combination = tuple[str, str]


def combination_of(record: Record) -> Combination:
    """Return the hashes of a record's model and cluster specs; their fingerprints if the record names no specs."""
    return (record.model_spec or record.model_fingerprint, record.cluster_spec or record.cluster_fingerprint)


def is_reference(record: Record) -> bool:
    """Return whether a record is a reference that has a time."""
    return record.origin == REFERENCE_ORIGIN and record.measurement is not None


def flag_drift(records: Iterable[Record], *, share: float = DRIFT_SHARE, keep: bool = False) -> list[Record]:
    """Return the records in their order, flagged `drifting_machine` if a reference next to them took an unusual time.

    The references next to a record are the last one of its combination before it and the first one after it, in the
    order of time. To find the usual times, each two consecutive references are compared: usual are the times from the
    median of the faster ones to the median of the slower ones. Earlier flags of this kind are removed first;
    `keep` keeps them, because a part of a dataset may lack the references that showed the drift.
    """
    everything = list(records)
    places: dict[tuple[str, Combination], list[int]] = defaultdict(list)
    for position, record in enumerate(everything):
        places[record.study, combination_of(record)].append(position)
    for found in places.values():
        found.sort(key=lambda position: (everything[position].started, everything[position].trial))
        drifting = _drifting([everything[position] for position in found], share)
        for position, is_drifting in zip(found, drifting, strict=True):
            record = everything[position]
            everything[position] = _flagged(record, is_drifting=is_drifting or (keep and _is_flagged(record)))
    return everything


def without_drift(record: Record) -> Record:
    """Return a record without the flag for drift."""
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


def _is_flagged(record: Record) -> bool:
    return record.measurement is not None and "drifting_machine" in record.measurement.flags


def _flagged(record: Record, *, is_drifting: bool) -> Record:
    measurement = record.measurement
    if measurement is None or is_drifting == _is_flagged(record):
        return record
    others = tuple(flag for flag in measurement.flags if flag != "drifting_machine")
    flags: tuple[Flag, ...] = (*others, "drifting_machine") if is_drifting else others
    return replace(record, measurement=replace(measurement, flags=flags))
