"""How much nodes without workers can help, against all orders of messages among a few nodes: docs/notes/bound.md."""

import heapq
import itertools
from collections.abc import Iterator

import pytest

State = tuple[int, ...]
"""For each node with workers, and last for the server: the set of nodes whose gradients it has heard of, as bits."""


@pytest.mark.parametrize("num_nodes", [2, 3, 4])
def test_no_order_of_messages_costs_less(num_nodes: int) -> None:
    """A message costs 1 at each end, and (n-2)/n at the server: all have heard of all for 4(n-1), not less."""
    assert cheapest(num_nodes) == 4 * (num_nodes - 1) * num_nodes


def test_a_server_that_counts_as_much_as_a_node_does_not_help() -> None:
    assert cheapest(3, at_server=3) == 4 * 2 * 3


def test_a_server_that_counts_less_makes_it_cheaper() -> None:
    assert cheapest(3, at_server=0) < 4 * 2 * 3


def cheapest(num_nodes: int, *, at_server: int | None = None) -> int:
    """Return the least cost, in n-ths, until all nodes have heard of all."""
    weight = num_nodes - 2 if at_server is None else at_server
    start = (*(1 << node for node in range(num_nodes)), 0)
    everything = (1 << num_nodes) - 1
    costs, upcoming = {start: 0}, [(0, start)]
    while True:
        cost, state = heapq.heappop(upcoming)
        if cost > costs[state]:
            continue
        if all(known == everything for known in state[:num_nodes]):
            return cost
        for price, after in messages(state, num_nodes, weight):
            if cost + price < costs.get(after, cost + price + 1):
                costs[after] = cost + price
                heapq.heappush(upcoming, (cost + price, after))


def messages(state: State, num_nodes: int, at_server: int) -> Iterator[tuple[int, State]]:
    """Yield each message that tells something new: its cost, and what all know afterwards."""
    at = [num_nodes] * num_nodes + [at_server]
    for source, target in itertools.permutations(range(num_nodes + 1), 2):
        known = state[source] | state[target]
        if known != state[target]:
            yield at[source] + at[target], (*state[:target], known, *state[target + 1 :])
