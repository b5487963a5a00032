"""Native collectives, among real processes."""

import pytest

from autosync.runtime.wire.native_collectives import is_native
from tests.helpers.transfers import plain_transfer

NUM_RANKS = 4
CASES = ("native_collectives", "a_dead_peer_of_a_native_collective")


def test_results_of_every_collective_and_type(wire_answers):
    assert wire_answers["native_collectives"] == [[]] * NUM_RANKS


def test_a_dead_peer_is_an_error(wire_answers):
    dead = wire_answers["a_dead_peer_of_a_native_collective"]
    assert len(dead) == NUM_RANKS - 1
    assert all(error.startswith("native all_reduce: ") for error in dead)
    everyone = ", ".join(f"rank {rank} on host-{rank}" for rank in range(NUM_RANKS))
    assert all(error.endswith(f" (among {everyone})") for error in dead)


@pytest.mark.parametrize(
    ("collective", "algorithm", "expected"),
    [
        ("all_reduce", "native", True),
        ("reduce", "native", True),
        ("broadcast", "native", True),
        ("all_reduce", "ring", False),
        ("reduce_scatter", "native", False),
        ("all_gather", "native", False),
        ("all_gather_v", "native", False),
    ],
)
def test_which_transfers_gloo_carries_out(collective, algorithm, expected):
    transfer = plain_transfer(collective, algorithm, (0, 1), 8)
    assert is_native(transfer) is expected
