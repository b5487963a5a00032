"""The parts of a run's time add up, and uneven records are told."""

from autosync.loops.time_report import time_lines, time_parts

_RANKS = [
    {
        "rank": 0,
        "num_records": 300,
        "epoch_seconds": 4.0,
        "compute_seconds": 3.0,
        "wait_seconds": 0.5,
        "merge_seconds": 0.25,
        "sent_bytes": 2_000_000,
    },
    {
        "rank": 1,
        "num_records": 100,
        "epoch_seconds": 2.0,
        "compute_seconds": 1.0,
        "wait_seconds": 0.5,
        "merge_seconds": 0.25,
        "sent_bytes": 0,
    },
]


def test_parts_add_up_to_the_slowest_rank() -> None:
    for rank in _RANKS:
        assert sum(time_parts(rank, 4.0).values()) == 4.0


def test_shares_and_the_fullest_rank_are_told() -> None:
    lines = list(time_lines(_RANKS))
    assert lines[0] == (
        "of its time, a rank computes 50%, waits for the slowest rank 25%, waits for blocks 12%, exchanges with "
        "servers 6%, other work 6%"
    )
    assert lines[1] == "rank 0 has 1.50 times the mean number of records"
    assert "2 MB" in lines[-1]


def test_a_run_of_no_time() -> None:
    rank = {**_RANKS[0], **dict.fromkeys(("epoch_seconds", "compute_seconds", "wait_seconds", "merge_seconds"), 0.0)}
    assert list(time_lines([rank]))
