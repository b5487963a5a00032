"""Numbers of tensors as bytes, whatever the strides of the tensors are."""

import pytest
import torch

from autosync.runtime.local.sparse_rows import Rows, pack_rows
from autosync.runtime.memory.byte_views import as_bytes


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.bool])
def test_bytes_are_those_of_the_numbers(dtype: torch.dtype) -> None:
    table = torch.arange(24).reshape(4, 6).to(dtype)
    for tensor in (table, table.T, table[:, 1], table[:1, 3], table[2:3, 4:5], table[0, 0], table[:0], table[::2, ::3]):
        found = as_bytes(tensor)
        assert (found.dtype, found.stride()) == (torch.uint8, (1,))
        assert torch.equal(found.view(dtype), tensor.flatten())
    assert as_bytes(table).data_ptr() == table.data_ptr()


def test_a_batch_of_one_example_has_rows_to_send() -> None:
    pairs = torch.tensor([[7, 3]])
    rows = Rows(pairs[:, 1], torch.ones(1, 2))
    assert len(pack_rows(rows)) == 8 + 8
