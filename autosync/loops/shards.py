"""The records of a rank: in memory, or in a file on its own disk, block after block in the order in which it runs them.

A rank maps its file into memory, so only the blocks at hand need memory. A later run with the same blocks finds the
file, and its records need not travel again. Several runs may share a folder: a file gets its name when it is complete,
and does not change from then on. A loop that assigns fields changes a copy, which no other run sees.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from autosync import disk_errors
from autosync.errors import OperationError
from autosync.loops.declarations import Records
from autosync.loops.peers import Peers, receive_value, send_value

_RECORDS_TAG = 4
_CHUNK_BYTES = 2**26


def send_records(peers: Peers, records: Records, to: int, *, keeps: bool) -> None:
    """Send a rank its records. If it `keeps` them in a file from an earlier run, only their hash travels."""
    fields = [[name, records.dtype[name].base.str, records.dtype[name].shape] for name in records.dtype.names or ()]
    told = {"fields": fields, "num_records": len(records), "hash": hash_of_records(records) if keeps else ""}
    send_value(peers, told, to)
    if keeps and receive_value(peers, to):
        return
    for chunk in _chunks(records):
        peers.post_send(chunk, to, _RECORDS_TAG).wait()


def receive_records(peers: Peers, folder: str, *, are_changed: bool) -> Records:
    """Receive this rank's records from rank 0, into a file of the folder if one is named.

    `are_changed` says that the loop assigns fields of records.
    """
    told = receive_value(peers, 0)
    record = np.dtype([(name, kind, tuple(shape)) for name, kind, shape in told["fields"]], align=True)
    if not folder:
        records = np.empty(told["num_records"], dtype=record)
        _receive_into(peers, records)
        return records
    path = shard_path(folder, peers.rank, peers.num_ranks)
    kept = _kept(path, record, told["num_records"])
    is_kept = kept is not None and hash_of_records(kept) == told["hash"]
    send_value(peers, is_kept, 0)
    if kept is None or not is_kept:
        with _new_file(path, record, told["num_records"]) as kept:
            _receive_into(peers, kept)
    return _own_copy(kept, path) if are_changed else kept


def keep_records(peers: Peers, records: Records, folder: str, *, are_changed: bool) -> Records:
    """Return rank 0's own records, in a file of the folder if one is named.

    `are_changed` says that the loop assigns fields of records.
    """
    if not folder:
        return records
    path = shard_path(folder, peers.rank, peers.num_ranks)
    kept = _kept(path, records.dtype, len(records))
    if kept is None or hash_of_records(kept) != hash_of_records(records):
        with _new_file(path, records.dtype, len(records)) as kept:
            kept[:] = records
    return _own_copy(kept, path) if are_changed else kept


def shard_path(folder: str, rank: int, num_ranks: int) -> Path:
    """Return the file of a rank's records."""
    return Path(folder) / f"records-{rank}-of-{num_ranks}.npy"


@contextlib.contextmanager
def _new_file(path: Path, record: np.dtype[Any], num_records: int) -> Iterator[Records]:
    """Yield records to fill, in a file that replaces any other at the end of the block."""
    if not num_records:
        yield np.empty(0, dtype=record)
        return
    temporary = path.with_name(f".autosync-{secrets.token_hex(8)}")
    try:
        with _on_disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            mapped = np.lib.format.open_memmap(temporary, mode="w+", dtype=record, shape=(num_records,))
            with temporary.open("r+b") as file:
                _reserve(file.fileno(), temporary.stat().st_size)
        yield _plain(mapped, record)
        with _on_disk(path):
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _own_copy(records: Records, path: Path) -> Records:
    """Return a copy on the same disk, in a file without a name."""
    if not records.nbytes:
        return records.copy()
    with _on_disk(path), tempfile.TemporaryFile(dir=path.parent) as file:
        _reserve(file.fileno(), records.nbytes)
        mapped = np.memmap(file, mode="r+", dtype=records.dtype, shape=records.shape)
    mapped[:] = records
    return _plain(mapped, records.dtype)


@contextlib.contextmanager
def _on_disk(path: Path) -> Iterator[None]:
    """Run a block that makes a file, and map its errors."""
    try:
        yield
    except OSError as error:
        raise OperationError(f"{path}: {error.strerror}: records cannot be kept there") from error


def _reserve(file: int, num_bytes: int) -> None:
    """Reserve blocks on the disk."""
    # Without blocks, a write to the mapping would end the process by SIGBUS when the disk is full.
    os.posix_fallocate(file, 0, num_bytes)


def _plain(mapped: Records, record: np.dtype[Any]) -> Records:
    """Return records as an ordinary array of exactly this type."""
    # For numpy, types that differ only in alignment are equal; for compilers they are not.
    return mapped.view(np.ndarray).view(record)


def _kept(path: Path, record: np.dtype[Any], num_records: int) -> Records | None:
    """Return the records of an earlier run; None if there are none, or others."""
    try:
        with disk_errors.open_input(path):
            # Opening refuses a pipe, for which numpy would wait.
            pass
        found = np.lib.format.open_memmap(path, mode="r+")
    except (OSError, ValueError, OverflowError, EOFError, SyntaxError, TokenError):
        return None
    if found.dtype != record or found.shape != (num_records,):
        return None
    return _plain(found, record)


def _receive_into(peers: Peers, records: Records) -> None:
    for chunk in _chunks(records):
        peers.post_receive(chunk, 0, _RECORDS_TAG).wait()


def _chunks(records: Records) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """Return the bytes of records in parts that one message can carry."""
    flat = np.ascontiguousarray(records).view(np.uint8).reshape(-1)
    return [flat[begin : begin + _CHUNK_BYTES] for begin in range(0, flat.nbytes, _CHUNK_BYTES)]


def hash_of_records(records: Records) -> str:
    """Return a hash of the fields' names, types and values. The bytes between fields mean nothing."""
    found = hashlib.sha256()
    for name in records.dtype.names or ():
        column = records[name]
        found.update(repr((name, column.dtype.str, column.shape)).encode())
        step = max(1, _CHUNK_BYTES // max(1, column.dtype.itemsize))
        for begin in range(0, len(column), step):
            found.update(np.ascontiguousarray(column[begin : begin + step]).view(np.uint8).data)
    return found.hexdigest()
