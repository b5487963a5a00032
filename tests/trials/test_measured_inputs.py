"""What ranks say of their input becomes means of a step."""

from __future__ import annotations

from typing import Any

import pytest

from autosync.datasets.measured_input import MeasuredInput
from autosync.inputs.measured_batches import BatchTimes
from autosync.inputs.meter import ReadTotals
from autosync.inputs.process_input import InputSums, note_batch, take_sums
from autosync.trials.measured_inputs import inputs_of, joined_sums, mean_input


def _sums(**changes: Any) -> dict[str, Any]:
    return {**InputSums().to_plain(), **changes}


def test_means_of_a_step() -> None:
    first = [_sums(num_batches=2, wait_seconds=1.0, hosts={"a": [100, 2.0]}), _sums(wait_seconds=3.0, read_seconds=2.0)]
    second = [_sums(wait_seconds=1.0, copy_seconds=2.0, hosts={"a": [300, 2.0], "b": [5, 0.0]}), _sums()]
    assert mean_input([first, second], 4) == MeasuredInput(
        wait_seconds=(0.5, 0.75),
        copy_seconds=(0.5, 0.0),
        read_seconds=(0.0, 0.5),
        decode_seconds=(0.0, 0.0),
        collate_seconds=(0.0, 0.0),
        request_rates={"a": 100.0},
    )


def test_without_a_loader_only_waits_and_copies_are_known() -> None:
    assert mean_input([[_sums(wait_seconds=1.0)]], 2) == MeasuredInput(wait_seconds=(0.5,), copy_seconds=(0.0,))
    assert mean_input([[_sums()], None], 2) is None
    assert mean_input([], 0) is None
    assert inputs_of([{"input": None}, {"input": _sums()}]) is None
    assert inputs_of([{}]) is None


def test_a_share_of_the_sums_of_runs() -> None:
    runs = [_sums(num_batches=2, read_seconds=1.0, hosts={"a": [10, 2.0]}), _sums(read_seconds=3.0)]
    found = joined_sums(runs, 0.5)
    assert (found["read_seconds"], found["num_batches"], found["hosts"]) == (2.0, 1.0, {"a": [5.0, 1.0]})


def test_batches_of_a_process_are_summed_once() -> None:
    take_sums(wait_seconds=0.0, copy_seconds=0.0)
    times = BatchTimes(
        worker=0,
        process=1,
        num_examples=4,
        read_seconds=0.5,
        decode_seconds=0.25,
        collate_seconds=0.125,
        hosts={"a": ReadTotals(num_bytes=10, num_requests=1, request_seconds=0.5)},
    )
    for _ in range(2):
        note_batch(times)
    found = take_sums(wait_seconds=3.0, copy_seconds=4.0)
    assert (found["num_batches"], found["read_seconds"], found["hosts"]) == (2, 1.0, {"a": [20, 1.0]})
    assert (found["wait_seconds"], found["copy_seconds"]) == (3.0, 4.0)
    assert take_sums(wait_seconds=0.0, copy_seconds=0.0)["num_batches"] == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"copy_seconds": (1.0,)}, "copy_seconds of 1 ranks"),
        ({"wait_seconds": (-1.0, 0.0)}, "0 or more"),
        ({"request_rates": {"a": 0.0}}, "above 0"),
    ],
)
def test_impossible_inputs_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MeasuredInput(**{"wait_seconds": (1.0, 2.0), **changes})
