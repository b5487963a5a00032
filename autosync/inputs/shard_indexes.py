"""Finds the samples of all shards of a dataset, and keeps what it found in a folder for later runs and other ranks.

The headers of a shard lie all over it, so with small samples its index costs as much reading as an epoch. A folder has
one file for each shard. Its name follows from the shard's identity, so a shard that changed has another file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch.distributed as dist

from autosync.disk_errors import is_full_error
from autosync.errors import InputError
from autosync.inputs.reader import ShardReader
from autosync.inputs.storage import ShardFile
from autosync.inputs.tar_index import ShardIndex, index_shard
from autosync.jsonio import replacing
from autosync.specs.input_settings import InputSettings

_KIND = "autosync.shard_index/1"
_ARRAYS = ("key_bounds", "field_bounds", "field_names", "starts", "lengths")


def index_shards(
    files: Sequence[ShardFile], reader: ShardReader, settings: InputSettings, *, folder: Path | None = None
) -> list[ShardIndex]:
    """Return the index of each shard, from the folder where it has it. Several shards are read at a time.

    Each rank begins elsewhere, so ranks that share the folder divide the work.
    """
    kept = None if folder is None else KeptIndexes(folder)

    def index_of(file: ShardFile) -> ShardIndex:
        found = None if kept is None else kept.get(file)
        if found is None:
            found = index_shard(file, reader, buffer_bytes=settings.read_bytes)
            if kept is not None:
                kept.put(file, found)
        return found

    first = _first_of_this_rank(len(files))
    with ThreadPoolExecutor(settings.read_concurrency, thread_name_prefix="autosync-index") as pool:
        indexes = list(pool.map(index_of, [*files[first:], *files[:first]]))
    after = len(files) - first
    return [*indexes[after:], *indexes[:after]]


def _first_of_this_rank(num_shards: int) -> int:
    if dist.is_available() and dist.is_initialized():
        rank, num_ranks = dist.get_rank(), dist.get_world_size()
    else:
        # Datasets are often made before the process group.
        found = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
        rank, num_ranks = (int(one) if one.isdecimal() else 0 for one in found)
    return num_shards * rank // num_ranks if rank < num_ranks else 0


class KeptIndexes:
    """Indexes of shards in the files of a folder. Processes may use it at the same time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: {error.strerror}", rule="the folder for indexes can be made") from error

    def get(self, file: ShardFile) -> ShardIndex | None:
        """Return a shard's index, or None if the folder has none that is whole."""
        # What a damaged file raises depends on the place of the damage. numpy leaves a file that it opens itself open.
        with (
            contextlib.suppress(Exception),
            self._path(file).open("rb") as stream,
            np.load(stream, allow_pickle=False) as found,
        ):
            arrays = [found[name].astype(np.int64, casting="equiv") for name in _ARRAYS]
            index = ShardIndex(tuple(found["names"].tolist()), found["keys"].tobytes(), *arrays)
            if all(one.ndim == 1 for one in arrays) and index.fits(file.num_bytes):
                return index
        return None

    def put(self, file: ShardFile, index: ShardIndex) -> None:
        """Keep a shard's index. A full disk is no reason to stop training: the shard is read again next time."""
        arrays = {name: getattr(index, name) for name in _ARRAYS}
        names, keys = np.array(index.names, dtype=np.str_), np.frombuffer(index.keys, dtype=np.uint8)
        path = self._path(file)
        try:
            with replacing(path) as target:
                np.savez_compressed(target, names=names, keys=keys, **arrays)
        except OSError as error:
            if is_full_error(error):
                return
            rule = "the folder for indexes can be written"
            raise InputError(f"{path}: {error.strerror}", rule=rule) from error

    def _path(self, file: ShardFile) -> Path:
        return self._folder / f"{hashlib.sha256(f'{_KIND} {file.identity}'.encode()).hexdigest()[:40]}.npz"
