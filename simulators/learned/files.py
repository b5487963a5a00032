"""Saved learned simulators: a folder with a manifest and the files that the manifest names.

The manifest tells what was learned, from which records, with which features, and how accurate it was on held-out
measurements. It has the hash of each file. Nothing in such a folder can run code: manifests and trees are JSON, tensors
are safetensors, and everything is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from autosync import __version__, documents, jsonio
from autosync.datasets.files import replacing
from autosync.disk_errors import open_input
from autosync.documents import STRICT
from autosync.errors import DocumentError, InputError, Problem

SCHEMA_KIND = "ranker"
SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"
MAX_FILES = 64

What = Literal["learned", "linear", "sequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedOn:
    """The records that were learned from. `fingerprint` is the hash of their strategies and measurements."""

    __pydantic_config__ = STRICT

    num_records: int
    models: tuple[str, ...]
    clusters: tuple[str, ...]
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The manifest of a saved learned simulator, which names its other files.

    `numbers` are the method's own figures, by name. `accuracy` is the accuracy on held-out measurements. `rehearsal`
    has features of small made-up cases: if a version reads the cases differently than in training, the corrections do
    not fit it.
    """

    __pydantic_config__ = STRICT

    what: What
    autosync: str
    features: tuple[str, ...]
    numbers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    trained_on: TrainedOn
    accuracy: Mapping[str, float] = field(default_factory=dict)
    rehearsal: tuple[float, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.files) > MAX_FILES:
            raise ValueError(f"{len(self.files)} files (at most {MAX_FILES})")
        for name in self.files:
            if name != Path(name).name or name in (MANIFEST_FILE, ".", ".."):
                raise ValueError(f"{name!r} is no file of this folder (a plain name)")
        for numbers in (*self.numbers.values(), tuple(self.accuracy.values()), self.rehearsal):
            if not all(math.isfinite(number) for number in numbers):
                raise ValueError("a number that is none (finite numbers)")

    def number(self, name: str, count: int = 1) -> tuple[float, ...]:
        """Return the figures of that name; raise unless there are `count`."""
        found = self.numbers.get(name, ())
        if len(found) != count:
            raise InputError(f"numbers.{name} has {len(found)} entries", rule=f"{self.what} has {count}")
        return found


def save(folder: Path | str, manifest: Manifest, contents: Mapping[str, bytes]) -> None:
    """Write a folder. The manifest is written last, so a folder with a manifest is complete."""
    for name, content in contents.items():
        with replacing(Path(folder) / name, force=True) as file:
            file.write(content)
    jsonio.write_json(Path(folder) / MANIFEST_FILE, documents.dump(manifest, kind=SCHEMA_KIND, version=SCHEMA_VERSION))


def manifest_of(
    what: What,
    *,
    features: Sequence[str],
    numbers: Mapping[str, Sequence[float]],
    trained_on: TrainedOn,
    accuracy: Mapping[str, float],
    rehearsal: Sequence[float],
    contents: Mapping[str, bytes],
) -> Manifest:
    """Return the manifest of a learned simulator that will be saved."""
    return Manifest(
        what=what,
        autosync=__version__,
        features=tuple(features),
        numbers={name: tuple(map(float, found)) for name, found in numbers.items()},
        trained_on=trained_on,
        accuracy=dict(accuracy),
        rehearsal=tuple(map(float, rehearsal)),
        files={name: _digest(content) for name, content in contents.items()},
    )


def is_saved(folder: Path | str) -> bool:
    """Return whether a folder has a manifest."""
    return (Path(folder) / MANIFEST_FILE).is_file()


def load_manifest(folder: Path | str, what: What) -> Manifest:
    """Return the manifest of a folder; raise if another method wrote it."""
    path = Path(folder) / MANIFEST_FILE
    manifest, _ = documents.load(path, kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=Manifest)
    if manifest.what != what:
        raise refused(path, InputError(f"this is for {manifest.what}, not for {what}", rule=f"what: {what}"))
    return manifest


def read_file(folder: Path | str, manifest: Manifest, name: str) -> bytes:
    """Return the content of a file that the manifest names; raise if its hash differs from the manifest's."""
    path = Path(folder) / name
    try:
        with open_input(path) as file:
            content = file.read(documents.MAX_BYTES + 1)
    except OSError as error:
        raise refused(path, InputError(f"cannot be read: {error.strerror}", rule="the manifest names it")) from error
    if len(content) > documents.MAX_BYTES:
        raise refused(path, InputError("the file is too large", rule=f"at most {documents.MAX_BYTES} bytes"))
    if _digest(content) != manifest.files.get(name):
        raise refused(path, InputError("the file is not the one that was saved", rule="its hash is in the manifest"))
    return content


def parse_json(path: Path, content: bytes) -> Any:
    """Return the value of a JSON file; raise a DocumentError if it is invalid."""
    try:
        return json.loads(content.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise refused(path, InputError(f"no JSON: {str(error)[:200]}", rule="XGBoost's JSON")) from error


def refused(path: Path, error: InputError) -> DocumentError:
    """Return the same mistakes with the name of their file."""
    return DocumentError(
        [Problem(what=one.what, rule=one.rule, hint=one.hint, path=one.path, file=str(path)) for one in error.problems]
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")
