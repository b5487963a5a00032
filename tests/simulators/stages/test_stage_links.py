"""What ranks send to one another in the sums of stages."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from autosync.simulators.stages.stage_links import bytes_between, parts_of_sum
from tests.helpers.transfers import plain_transfer


@given(
    topology=st.sampled_from(["native", "ring", "halving_doubling", "tree"]),
    num_ranks=st.integers(1, 9),
    num_elements=st.integers(1, 1000),
)
def test_the_parts_of_a_sum_carry_all_its_bytes(topology: Any, num_ranks: int, num_elements: int) -> None:
    group = tuple(range(num_ranks))
    transfer = plain_transfer("all_reduce", topology, group, num_elements)
    parts = parts_of_sum(transfer, group)
    assert len(parts) == 1 or topology == "halving_doubling"
    found: Counter[tuple[int, int]] = Counter()
    for part in parts:
        found.update(part)
    assert +found == +Counter(bytes_between(transfer))
