"""The folder of a checkpoint, which is complete at every moment, even if processes are killed.

    PATH/engine_state.json            names and describes the valid version; replaced as a whole, as the last step
    PATH/000007-1f0c2e9a/             one folder for each save
        worker-0.safetensors          the state of one worker; the first worker's file includes that of the servers
        worker-1.safetensors

Whatever engine_state.json does not name is left over from an unfinished save, and the next save removes it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autosync import documents, jsonio
from autosync.disk_errors import naming_file, open_input
from autosync.documents import STRICT
from autosync.errors import DocumentError, OperationError

KIND = "engine_state"
VERSION = 1
DOCUMENT = "engine_state.json"

_VERSION_FOLDER = re.compile(r"([0-9]{6,12})-[0-9a-f]{8}")
_TEMPORARY = re.compile(r"\.autosync-[0-9a-f]{16}")
_CHUNK_BYTES = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """The name, size and hash of a file as it was written."""

    __pydantic_config__ = STRICT

    name: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The description of a checkpoint. `kept` describes the state of each variable.

    `step` counts synchronised steps, `optimizer_steps` those of the optimizer, which older versions did not count.
    `parameters` are hashes of the first worker's parameter values, which are saved elsewhere but belong to the
    checkpoint.
    """

    __pydantic_config__ = STRICT

    autosync: str
    torch: str
    model: str
    model_fingerprint: str
    strategy_id: str
    plan_id: str
    num_workers: int
    step: int
    optimizer: str
    kept: dict[str, list[str]]
    parameters: dict[str, str]
    folder: str
    files: list[FileFacts]
    optimizer_steps: int | None = None
    checksum: str = ""

    def __post_init__(self) -> None:
        if self.num_workers < 1 or min(self.step, self.num_steps) < 0:
            raise ValueError(f"{self.num_workers} workers at step {self.step} (1 or more, 0 or more)")
        if not _VERSION_FOLDER.fullmatch(self.folder):
            raise ValueError(f"folder {self.folder!r} is no name that autosync gives (000001-0123abcd)")
        if [file.name for file in self.files] != [file_name(rank) for rank in range(self.num_workers)]:
            raise ValueError(f"the files are not those of {self.num_workers} workers ({file_name(0)} and so on)")

    @property
    def num_steps(self) -> int:
        """The number of optimizer steps that were made."""
        return self.step if self.optimizer_steps is None else self.optimizer_steps

    def content(self) -> dict[str, Any]:
        """Return the fields as they stand in the document."""
        fields = dataclasses.asdict(self)
        if self.optimizer_steps is None:
            del fields["optimizer_steps"]
        return fields

    def own_checksum(self) -> str:
        """Return the value that `checksum` has if nothing was changed."""
        fields = self.content()
        del fields["checksum"]
        return jsonio.content_hash(fields, length=64)


def file_name(rank: int) -> str:
    """Return the name of a worker's file."""
    return f"worker-{rank}.safetensors"


# Writing.


def begin(path: Path) -> str:
    """Remove what unfinished saves have left, and return the name of a new version."""
    path.mkdir(parents=True, exist_ok=True)
    current = _current(path)
    newest = 0
    for entry in sorted(path.iterdir()):
        found = _VERSION_FOLDER.fullmatch(entry.name)
        if found:
            newest = max(newest, int(found[1]))
            # If the document cannot be read, any of these folders may be the valid version.
            if current is not None and entry.name != current:
                shutil.rmtree(entry, ignore_errors=True)
        elif _TEMPORARY.fullmatch(entry.name):
            entry.unlink(missing_ok=True)
    return f"{newest + 1:06}-{secrets.token_hex(4)}"


def write_file(path: Path, version: str, rank: int, content: bytes) -> FileFacts:
    """Write a worker's file, and wait until the disk has it."""
    folder = path / version
    folder.mkdir(parents=True, exist_ok=True)
    name = file_name(rank)
    with naming_file(folder / name), (folder / name).open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(folder)
    return FileFacts(name=name, num_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def commit(path: Path, saved: Saved) -> None:
    """Make a version the valid one if all its files exist; then remove the others."""
    for rank, facts in enumerate(saved.files):
        file = path / saved.folder / facts.name
        if not file.is_file() or file.stat().st_size != facts.num_bytes:
            raise OperationError(
                f"{file} is not there, or not as worker {rank} has written it (the folder must be on a file system "
                "that all workers share)"
            )
    _sync_folder(path)
    document = dataclasses.replace(saved, checksum=saved.own_checksum())
    schema = {"schema": f"autosync.{KIND}/{VERSION}"}
    with naming_file(path / DOCUMENT):
        jsonio.write_json(path / DOCUMENT, schema | document.content())
    _sync_folder(path)
    for entry in path.iterdir():
        if _VERSION_FOLDER.fullmatch(entry.name) and entry.name != saved.folder:
            shutil.rmtree(entry, ignore_errors=True)


def drop(path: Path, version: str) -> None:
    """Remove a version after a failure, unless it is the valid one: the failure may have come after the commit."""
    if _current(path) not in (version, None):
        shutil.rmtree(path / version, ignore_errors=True)


def _current(path: Path) -> str | None:
    """Return the name of the valid version, "" if there is none, or None if the name cannot be read."""
    if not (path / DOCUMENT).exists():
        return ""
    try:
        return read(path).folder
    except DocumentError:
        return None


def _sync_folder(folder: Path) -> None:
    with naming_file(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# Reading.


def read(path: Path) -> Saved:
    """Return the description of a folder's checkpoint; refuse one that is changed, of another kind or newer."""
    saved, document = documents.load(path / DOCUMENT, kind=KIND, version=VERSION, into=Saved)
    if saved.checksum != saved.own_checksum():
        raise DocumentError(
            f"{document.file}: its contents are not those that were written: the checksum differs",
            rule="it is written by autosync.save alone",
        )
    return saved


def check_file(path: Path, saved: Saved, rank: int) -> None:
    """Refuse a worker's file that differs from what was written."""
    facts = saved.files[rank]
    file = path / saved.folder / facts.name
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OperationError(f"{file} is no file: something else has its name")
        if status.st_size != facts.num_bytes:
            raise OperationError(f"{file} has {status.st_size} bytes, and had {facts.num_bytes} when it was written")
        digest = hashlib.sha256()
        with open_input(file) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise OperationError(f"{file} cannot be read: {error.strerror}") from error
    if digest.hexdigest() != facts.sha256:
        raise OperationError(f"{file} is not as it was written: its checksum differs")


def path_of(path: Path, saved: Saved, rank: int) -> Path:
    """Return the path of a worker's file."""
    return path / saved.folder / saved.files[rank].name
