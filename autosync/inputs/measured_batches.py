"""Wraps a dataset and its collate function, so that each batch arrives with the times of its parts.

The times are taken in the worker and travel with the batch.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, get_worker_info

from autosync.errors import AutosyncError, OperationError
from autosync.inputs.dataset_facts import gives_batches
from autosync.inputs.meter import METER, ReadTotals

MAIN_PROCESS = -1
"""The number of the worker in pipelines without workers."""

_MOST_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """Where and how a batch was made. `read_seconds` is the wait for reads through autosync; what else the dataset
    does is `decode_seconds`. A processor was busy for `cpu_seconds`, reads included."""

    worker: int
    process: int
    num_examples: int
    read_seconds: float
    decode_seconds: float
    collate_seconds: float
    hosts: Mapping[str, ReadTotals]
    cpu_seconds: float = 0.0


class MeasuredDataset(Dataset[Any]):
    """Fetches whole batches from another dataset and measures the parts. Errors of autosync become part of the batch:
    torch would turn them into texts with tracebacks."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, numbers: Sequence[int]) -> Any:
        METER.take()
        began, cpu = time.perf_counter(), _cpu_seconds()
        try:
            examples, failure = self._fetch(numbers), None
        except AutosyncError as error:
            examples, failure = [], error
        return examples, failure, (time.perf_counter() - began, _cpu_seconds() - cpu)

    def _fetch(self, numbers: Sequence[int]) -> list[Any]:
        if not gives_batches(type(self.dataset)):
            return [self._one(number) for number in numbers]
        try:
            return list(self.dataset.__getitems__(numbers))
        except StopIteration as error:
            more = ", ..." if len(numbers) > _MOST_NAMED else ""
            named = ", ".join(map(str, numbers[:_MOST_NAMED])) + more
            raise _stopped(f"the dataset, asked for the examples {named},", error) from error

    def _one(self, number: int) -> Any:
        try:
            return self.dataset[number]
        except StopIteration as error:
            raise _stopped(f"the dataset, asked for example {number},", error) from error


class MeasuredCollate:
    """Collates a batch with another function and adds the times."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, fetched: Any) -> tuple[Any, AutosyncError | None, BatchTimes]:
        # What MeasuredDataset fetched; torch's types know only lists here.
        examples, failure, (fetch_seconds, fetch_cpu) = fetched
        began, cpu = time.perf_counter(), _cpu_seconds()
        batch = None
        if failure is None:
            try:
                batch = self.collate(examples)
            except StopIteration as error:
                failure = _stopped("the collate function", error)
        collate_seconds = time.perf_counter() - began
        wait_seconds, hosts = METER.take()
        read_seconds = min(wait_seconds, fetch_seconds)
        worker = get_worker_info()
        times = BatchTimes(
            worker=MAIN_PROCESS if worker is None else worker.id,
            process=os.getpid(),
            num_examples=len(examples),
            read_seconds=read_seconds,
            decode_seconds=fetch_seconds - read_seconds,
            collate_seconds=collate_seconds,
            hosts=hosts,
            cpu_seconds=fetch_cpu + _cpu_seconds() - cpu,
        )
        return batch, failure, times


def _stopped(who: str, error: StopIteration) -> OperationError:
    """Return the error for a StopIteration of the user's code: torch would take it for the end of the epoch."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    return OperationError(
        f"{who} raised StopIteration in {place.name} ({place.filename}:{place.lineno}){notes}: it would end the epoch "
        "and lose the examples that are left (next() raises it at the end of an iterator)"
    )


def _cpu_seconds() -> float:
    """Return the processor time so far: of a worker's process, and in the rank's own process of this thread."""
    return time.thread_time() if get_worker_info() is None else time.process_time()
