"""Finds the samples of a tar shard, as webdataset has them: neighbouring files with the same base name are one sample.

`images/cat7.jpg` and `images/cat7.cls` are the fields `jpg` and `cls` of the sample `images/cat7`. Only headers are
looked at. A shard that ends early is an error, and so is anything in it that could not be given to the user.
"""

from __future__ import annotations

import io
import tarfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt

from autosync.errors import OperationError
from autosync.inputs.reader import ByteRange, ShardReader, ShardStream
from autosync.inputs.storage import ShardFile

_END = bytes(512)
_ODD_BYTES = "surrogateescape"
"""Names in an archive may have bytes that are no UTF-8. tarfile gives them as surrogates."""


@dataclass(frozen=True, slots=True)
class TarField:
    """One file of a sample: its extension, and its bytes in the shard."""

    name: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class TarSample:
    """The place of one sample in a shard."""

    key: str
    fields: tuple[TarField, ...]

    @property
    def start(self) -> int:
        return self.fields[0].start

    @property
    def end(self) -> int:
        last = self.fields[-1]
        return last.start + last.length


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """The samples of a shard, in their order.

    A dataset has millions of samples, and every worker has them all. So they are arrays: objects for each sample would
    take four times the memory (400 bytes for one with two fields). Sample `i` has the key
    `keys[key_bounds[i]:key_bounds[i + 1]]`, and the fields from number `field_bounds[i]` up to `field_bounds[i + 1]`.
    """

    names: tuple[str, ...]
    """The names of fields. `field_names` has the place of each field's name here."""
    keys: bytes
    key_bounds: npt.NDArray[np.int64]
    field_bounds: npt.NDArray[np.int64]
    field_names: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.key_bounds) - 1

    def __getitem__(self, number: int) -> TarSample:
        key = self.keys[self.key_bounds[number] : self.key_bounds[number + 1]]
        fields = (
            TarField(self.names[self.field_names[at]], int(self.starts[at]), int(self.lengths[at]))
            for at in range(self.field_bounds[number], self.field_bounds[number + 1])
        )
        return TarSample(key.decode("utf-8", _ODD_BYTES), tuple(fields))

    def fits(self, num_bytes: int) -> bool:
        """Whether this may be the index of a shard of so many bytes."""
        num_fields, num_names = len(self.starts), len(self.names)
        return (
            _divides(self.key_bounds, len(self.keys))
            and _divides(self.field_bounds, num_fields)
            and len(self.key_bounds) == len(self.field_bounds)
            and len(self.field_names) == len(self.lengths) == num_fields
            and bool(np.all((self.field_names >= 0) & (self.field_names < num_names)))
            and bool(np.all((self.starts >= 0) & (self.lengths >= 0) & (self.starts <= num_bytes - self.lengths)))
        )


def _divides(bounds: npt.NDArray[np.int64], total: int) -> bool:
    """Whether bounds divide a total into pieces."""
    return len(bounds) > 0 and bounds[0] == 0 and bounds[-1] == total and bool(np.all(np.diff(bounds) >= 0))


def index_shard(file: ShardFile, reader: ShardReader, *, buffer_bytes: int) -> ShardIndex:
    """Read the headers of a shard, and return its samples."""
    stream = io.BufferedReader(ShardStream(file, reader), buffer_size=buffer_bytes)
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            index = _gathered(_samples(_fields(archive, file), file))
            end = archive.offset
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise damaged(file, str(error)) from error
    _check_end(file, reader, end, buffer_bytes)
    return index


def _gathered(samples: Iterator[TarSample]) -> ShardIndex:
    numbers, keys = dict[str, int](), bytearray()
    key_bounds, field_bounds = array("q", [0]), array("q", [0])
    field_names, starts, lengths = array("q"), array("q"), array("q")
    for sample in samples:
        keys += sample.key.encode("utf-8", _ODD_BYTES)
        for field in sample.fields:
            field_names.append(numbers.setdefault(field.name, len(numbers)))
            starts.append(field.start)
            lengths.append(field.length)
        key_bounds.append(len(keys))
        field_bounds.append(len(starts))
    arrays = (np.array(one, dtype=np.int64) for one in (key_bounds, field_bounds, field_names, starts, lengths))
    return ShardIndex(tuple(numbers), bytes(keys), *arrays)


def _check_end(file: ShardFile, reader: ShardReader, end: int, buffer_bytes: int) -> None:
    """Raise unless an archive ends at a byte: with an empty block, and nothing but empty ones behind it.

    tarfile takes a damaged header, a missing end and the first empty block for an end. Behind an empty block there may
    be another archive, if two were joined, or the rest of this one, if a download has left a hole.
    """
    for start in range(end, max(file.num_bytes, end + 1), buffer_bytes):
        (piece,) = reader.read([ByteRange(file, start, max(min(buffer_bytes, file.num_bytes - start), 0))])
        if start == end and piece[: len(_END)] != _END:
            raise damaged(file, f"no archive continues or ends at byte {end} of {file.num_bytes}")
        if piece.strip(b"\0"):
            raise damaged(file, f"more data follows the end at byte {end} (archives joined, or a hole in this one?)")


def _fields(archive: tarfile.TarFile, file: ShardFile) -> Iterator[tuple[str, TarField]]:
    """Yield each file's key and field."""
    for member in archive:
        if member.isdir():
            continue
        if not member.isreg() or member.issparse():
            raise damaged(file, f"{member.name!r} is no plain file")
        if member.size < 0 or member.offset_data + member.size > file.num_bytes:
            raise damaged(file, f"{member.name!r} has {member.size} bytes, more than there are left")
        # The archive keeps every member otherwise, and shards have many.
        archive.members = []  # type: ignore[attr-defined]
        path = PurePosixPath(member.name)
        stem, dot, extension = path.name.partition(".")
        if not dot or not stem or extension.startswith("__"):
            raise damaged(file, f"{member.name!r} has no extension that could be its field's name")
        yield str(path.with_name(stem)), TarField(extension.lower(), member.offset_data, member.size)


def _samples(found: Iterator[tuple[str, TarField]], file: ShardFile) -> Iterator[TarSample]:
    key, fields = "", dict[str, TarField]()
    for one_key, field in found:
        if one_key != key and fields:
            yield TarSample(key, tuple(fields.values()))
            fields = {}
        key = one_key
        if field.name in fields:
            raise damaged(file, f"the sample {key!r} has two files {field.name!r}")
        fields[field.name] = field
    if fields:
        yield TarSample(key, tuple(fields.values()))


def damaged(file: ShardFile, what: str) -> OperationError:
    """Return the error for a shard that is no whole archive."""
    return OperationError(f"{file.url}: the shard on {file.host} is truncated or damaged: {what}")
