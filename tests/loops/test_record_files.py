"""A file of records is read as data; a damaged one is refused with the loop's line."""

import os
from pathlib import Path

import numpy as np
import pytest

from autosync.errors import InputError
from autosync.loops.load import load_loop, records_of

_LOOP = """import autosync


@autosync.loop(records="{path}", tables={{"t": autosync.Table(shape=(9,))}})
def step(r, t):
    t[r.i] += 1.0
"""
_MAGIC = b"\x93NUMPY\x01\x00v\x00"


def _header(text: str) -> bytes:
    return _MAGIC + text.encode().ljust(117) + b"\n"


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "loop.py").write_text(_LOOP.format(path=tmp_path / "records.npy"), encoding="utf-8")
    return str(tmp_path / "loop.py")


def test_records_of_a_file(tmp_path: Path, target: str) -> None:
    records = np.array([(1,), (4,)], dtype=[("i", "i8")])
    np.save(tmp_path / "records.npy", records)
    assert records_of(load_loop(target), target)["i"].tolist() == [1, 4]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"PK\x03\x04 no archive",
        _header("{'descr': [('i', '<i8')], 'fortran_order': False, 'shape': (100000000000000,), }"),
        _header(f"{{'descr': [('i', '<i8')], 'fortran_order': False, 'shape': ({10**30},), }}"),
        _header("{'descr': [('i', '<i8')], 'fortran_order': False, 'shape': (-1,), }"),
        _header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"),
        _header("(((((("),
        _header("__import__('os')"),
    ],
    ids=["empty", "no array", "too few bytes", "a huge shape", "a negative shape", "objects", "open", "code"],
)
def test_damaged_files_are_refused(tmp_path: Path, target: str, raw: bytes) -> None:
    (tmp_path / "records.npy").write_bytes(raw)
    with pytest.raises(InputError, match=r"loop\.py:\d+: records: .*records\.npy"):
        records_of(load_loop(target), target)


def test_a_pipe_is_refused_at_once(tmp_path: Path, target: str) -> None:
    os.mkfifo(tmp_path / "records.npy")
    with pytest.raises(InputError, match="it is a pipe"):
        records_of(load_loop(target), target)
