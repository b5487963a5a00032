"""Silences torch's warning of more workers than cores, where trials find out whether they help."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def many_workers_allowed() -> Iterator[None]:
    """Do not warn of the number of workers in this block."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield
