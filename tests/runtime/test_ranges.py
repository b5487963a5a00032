"""Ranges written into tensors whose memory is not in the order of their elements."""

import itertools

import pytest
import torch

from autosync.runtime.memory.element_ranges import write_range

TENSORS = {
    "contiguous": torch.zeros(3, 4),
    "columns": torch.zeros(5, 7).narrow(1, 2, 3),
    "inner axis": torch.zeros(3, 5, 2).narrow(1, 1, 3),
    "channels last": torch.zeros(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
    "transposed": torch.zeros(4, 3).T,
    "one column": torch.zeros(4, 3).narrow(1, 1, 1),
    "scalar": torch.zeros(()),
}


@pytest.mark.parametrize("name", TENSORS)
def test_every_range_is_written_and_nothing_else(name: str) -> None:
    target = TENSORS[name]
    num_elements = target.numel()
    values = torch.arange(1.0, num_elements + 1)
    for start, stop in itertools.combinations_with_replacement(range(num_elements + 1), 2):
        target.zero_()
        write_range(target, start, values[start:stop])
        expected = torch.zeros(num_elements)
        expected[start:stop] = values[start:stop]
        assert torch.equal(target.reshape(-1), expected), (start, stop)
