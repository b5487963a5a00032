"""An error of one rank before training reaches the others, which would wait in vain otherwise."""

import datetime as dt

import pytest
from torch import distributed as dist

from autosync.errors import OperationError
from autosync.runtime.session.agreement import VERDICT, refusal_told, verdict_on

PATIENCE = dt.timedelta(seconds=2)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OperationError("no such model"), "rank 1: no such model"),
        (RuntimeError("view size is not compatible"), "rank 1: RuntimeError: view size is not compatible"),
        (KeyError("mask"), "rank 1: KeyError: 'mask'"),
    ],
)
def test_rank_0_hears_why_another_rank_does_not_take_part(error: Exception, words: str) -> None:
    store = dist.HashStore()
    with pytest.raises(type(error)), refusal_told(store, rank=1):
        raise error
    assert verdict_on(store, {1: "rank 1"}, {}, patience=PATIENCE) == words


def test_all_hear_why_rank_0_does_not_take_part() -> None:
    store = dist.HashStore()
    with pytest.raises(ValueError, match="odd"), refusal_told(store, rank=0):
        raise ValueError("odd")
    assert store.get(VERDICT).decode() == "rank 0: ValueError: odd"
