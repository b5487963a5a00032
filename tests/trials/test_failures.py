"""Whom a failure is put down to."""

from __future__ import annotations

import errno
import os

import pytest

from autosync.errors import OperationError
from autosync.trials.failures import Blame, TrialFailed, blame_of


def _system(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EADDRINUSE, errno.EHOSTUNREACH, errno.EIO, errno.ESTALE]
)
def test_what_the_system_has_no_room_or_no_way_for_is_the_machines(number: int) -> None:
    assert blame_of(_system(number)) == "machines"
    # torch tells what the system said in words of its own.
    assert blame_of(RuntimeError(f"bind failed: {os.strerror(number)} [::]:1234")) == (
        "strategy" if number == errno.EDQUOT else "machines"
    )


def test_the_cause_counts_however_deep_it_lies() -> None:
    error = OperationError("no trace can be written")
    error.__cause__ = _system(errno.ENOSPC)
    assert blame_of(error) == "machines"
    assert blame_of(OperationError("no trace can be written")) == "strategy"


@pytest.mark.parametrize(
    "error", [ConnectionResetError("x"), RuntimeError("[transport/tcp/pair.cc:1] Connection closed by peer [10.0.0.1]")]
)
def test_a_connection_that_is_lost_may_be_either(error: Exception) -> None:
    assert blame_of(error) == "either"


@pytest.mark.parametrize("error", [ValueError("no such luck"), MemoryError(), FileNotFoundError(2, "no such file")])
def test_anything_else_is_the_strategys(error: Exception) -> None:
    assert blame_of(error) == "strategy"


@pytest.mark.parametrize(
    ("blame", "is_repeated", "kind"),
    [
        ("strategy", False, "lost_rank"),
        ("strategy", True, "lost_rank"),
        ("either", False, "infrastructure"),
        ("either", True, "lost_rank"),
        ("machines", False, "infrastructure"),
        ("machines", True, "infrastructure"),
    ],
)
def test_what_the_record_says(blame: Blame, is_repeated: bool, kind: str) -> None:
    failure = TrialFailed("lost_rank", "rank 1 is gone", blame=blame)
    record = failure.as_record(is_repeated=is_repeated)
    assert (record.kind, record.message) == (kind, "rank 1 is gone")
    assert record.is_infrastructure is failure.is_excused(is_repeated=is_repeated) is (kind == "infrastructure")


def test_a_launch_that_fails_is_never_a_strategys() -> None:
    failure = TrialFailed("launch", "no such Python")
    assert failure.is_excused(is_repeated=True)
    assert failure.as_record(is_repeated=True).kind == "launch"
    assert TrialFailed("raised", "x").blame == "strategy"
