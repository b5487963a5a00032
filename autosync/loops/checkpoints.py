"""Checkpoints of a loop: the tables, the fields that the loop assigns, and the number of epochs that are done.

A checkpoint is a .npz file that rank 0 replaces as a whole after every few epochs. A run that continues from it has the
same tables, bit for bit, as a run without interruption, if its schedule is the same.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from autosync import disk_errors, jsonio
from autosync.errors import InputError
from autosync.loops.declarations import Records, Tables

SCHEMA = "autosync.loop-checkpoint/1"
_ABOUT = "about"
_MAX_HEADERS = 2**20
_BROKEN_HEADERS = (SyntaxError, TokenError)
_DAMAGES = (OSError, ValueError, KeyError, TypeError, EOFError, *_BROKEN_HEADERS, MemoryError, zipfile.BadZipFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The progress of a run: the epochs that are done, their seconds and their losses."""

    num_epochs: int = 0
    seconds: float = 0.0
    losses: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """The hashes of the loop and of its records, as they were given. A run continues only from a checkpoint of both."""

    loop: str
    records: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """The file of a run's checkpoints, which rank 0 writes after every `every` epochs. `resumes` reads it first."""

    path: Path
    every: int = 1
    resumes: bool = False

    def restore(
        self, origin: RunOrigin, num_epochs: int, fields: Iterable[str], records: Records, tables: Tables
    ) -> Checkpoint:
        """Return the progress in the file, and write its numbers into records and tables. Without one, begin anew.

        `num_epochs` are the epochs of the whole run, and `fields` the record fields that the loop assigns.
        """
        if not self.resumes:
            return Checkpoint()
        targets: dict[str, np.ndarray[Any, Any]] = {f"table.{name}": table for name, table in tables.items()}
        targets |= {f"field.{name}": records[name] for name in fields}
        try:
            arrays = _read(self.path, sum(target.nbytes for target in targets.values()))
            done = self._progress(json.loads(arrays.pop(_ABOUT).tobytes()), origin)
        except FileNotFoundError as error:
            raise self._error("there is no such checkpoint", "a file that --checkpoint wrote") from error
        except _DAMAGES as error:
            raise self._error(
                "is no checkpoint of this loop, or is damaged", "a file that --checkpoint wrote"
            ) from error
        if done.num_epochs >= num_epochs:
            what = f"{done.num_epochs} epochs are done"
            raise self._error(what, f"--epochs counts all epochs, so more than {done.num_epochs} are needed")
        self._check(arrays, targets)
        for name, target in targets.items():
            target[...] = arrays[name]
        return done

    def save(
        self, origin: RunOrigin, done: Checkpoint, fields: Iterable[str], records: Records, tables: Tables
    ) -> None:
        """Replace the file by the state after an epoch."""
        about = {"schema": SCHEMA, **asdict(origin), **asdict(done)}
        arrays = {f"table.{name}": table for name, table in tables.items()}
        arrays |= {f"field.{name}": np.ascontiguousarray(records[name]) for name in fields}
        arrays[_ABOUT] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        with jsonio.replacing(self.path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    def _progress(self, about: Mapping[str, Any], origin: RunOrigin) -> Checkpoint:
        if about["schema"] != SCHEMA:
            raise self._error(f"has the schema {about['schema']!r}", SCHEMA)
        if about["loop"] != origin.loop:
            raise self._error("is a checkpoint of another loop", "the same function, tables and numbers of the file")
        if about["records"] != origin.records:
            raise self._error("is a checkpoint of other records", "the same records in the same order")
        return Checkpoint(
            num_epochs=int(about["num_epochs"]),
            seconds=float(about["seconds"]),
            losses=tuple(float(loss) for loss in about["losses"]),
        )

    def _check(self, arrays: Tables, targets: Mapping[str, np.ndarray[Any, Any]]) -> None:
        shapes = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        wanted = {name: (array.shape, array.dtype) for name, array in targets.items()}
        if shapes != wanted:
            different = sorted({name for name, _ in shapes.items() ^ wanted.items()})
            raise self._error(f"does not fit the loop: {', '.join(different)}", "the same tables and records")

    def _error(self, what: str, rule: str) -> InputError:
        return InputError(f"{self.path}: {what}", rule=rule)


def _read(path: Path, num_bytes: int) -> Tables:
    """Return the arrays of a .npz file. Raise ValueError if it has more bytes than the loop's own arrays."""
    with disk_errors.open_input(path) as stream:
        with zipfile.ZipFile(stream) as archive:
            if sum(one.file_size for one in archive.infolist()) > num_bytes + _MAX_HEADERS:
                raise ValueError("too large")
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("a member is no array")
    return arrays
