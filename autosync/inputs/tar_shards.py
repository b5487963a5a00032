"""The dataset of tar shards: its examples have numbers, and any of them can be read without those before it."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from torch.utils.data import Dataset

from autosync import jsonio
from autosync.errors import InputError, Problem
from autosync.inputs.dataset_facts import gives_batches, own
from autosync.inputs.http_requests import Patience
from autosync.inputs.reader import ByteRange, ShardReader
from autosync.inputs.shard_indexes import index_shards
from autosync.inputs.storage import ShardFile, open_shard
from autosync.inputs.tar_index import TarSample
from autosync.specs.input_settings import InputSettings

Decode = Callable[[dict[str, Any]], Any]

_GAP_BYTES = 2**15
"""Samples that are no farther apart are read in one go: headers and padding lie between neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """What a shard has: its samples, and the names of their fields."""

    url: str
    host: str
    num_bytes: int
    num_samples: int
    field_names: tuple[str, ...]


class TarShards(Dataset[Any]):
    """The samples of tar shards, which may lie in local files, on HTTP servers, or where fsspec reads.

    A sample is a mapping from extension to bytes, with its name as `__key__`. `decode` turns it into an example;
    autosync itself interprets no bytes. The headers of all shards are read at the start; where samples are smaller than
    a request, this reads the whole shards. With an `index_folder`, what was found is kept there, and later runs and
    other ranks read only the shards that are new or have changed.
    """

    def __init__(
        self,
        urls: Sequence[str | Path],
        decode: Decode | None = None,
        *,
        settings: InputSettings | None = None,
        patience: Patience | None = None,
        index_folder: str | Path | None = None,
    ) -> None:
        if isinstance(urls, str | Path) or not urls:
            raise InputError([Problem(what=f"are {urls!r}", rule="a list of one shard or more", path=("urls",))])
        self._decode = decode
        self._settings = settings or InputSettings()
        self._reader = ShardReader(self._settings)
        with ThreadPoolExecutor(self._settings.read_concurrency, thread_name_prefix="autosync-open") as pool:
            self._files = list(pool.map(lambda url: open_shard(str(url), patience), urls))
        _check_cache(self._settings, self._files)
        if index_folder is not None:
            _refuse_unmarked(self._files, "an index that is kept needs one of them")
        folder = None if index_folder is None else Path(index_folder)
        self._indexes = index_shards(self._files, self._reader, self._settings, folder=folder)
        self._ends = list(itertools.accumulate(map(len, self._indexes)))
        # Workers are forked later: threads would not follow them.
        self._reader.close()

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """The number of samples in each shard."""
        return tuple(map(len, self._indexes))

    @property
    def shard_bytes(self) -> tuple[int, ...]:
        """The size of each shard's file."""
        return tuple(file.num_bytes for file in self._files)

    @property
    def shards_digest(self) -> str:
        """A text that is another one if shards have other names or another order.

        Folders, hosts and queries do not count: a dataset may move.
        """
        return jsonio.content_hash([unquote(file.url).rpartition("/")[2] for file in self._files])

    def facts(self) -> tuple[ShardFacts, ...]:
        """Return what each shard has."""
        return tuple(
            ShardFacts(
                url=file.url,
                host=file.host,
                num_bytes=file.num_bytes,
                num_samples=len(index),
                field_names=tuple(sorted(index.names)),
            )
            for file, index in zip(self._files, self._indexes, strict=True)
        )

    def with_settings(self, settings: InputSettings) -> TarShards:
        """Return the same dataset read under other settings. The headers are not read again."""
        _check_cache(settings, self._files)
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._settings = settings  # noqa: SLF001 - the same class
        other._reader = ShardReader(settings)  # noqa: SLF001 - the same class
        return other

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: int) -> Any:
        return self._examples([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Return the examples of a batch. Neighbours are read together, unless a subclass has its own `__getitem__`."""
        return self._examples(numbers) if gives_batches(type(self)) else [self[number] for number in numbers]

    def _examples(self, numbers: Sequence[int]) -> list[Any]:
        places = [self._place(number) for number in numbers]
        ranges = _joined(sorted({(shard, sample.start, sample.end) for shard, sample in places}))
        wanted = [ByteRange(self._files[shard], start, end - start) for shard, start, end in ranges]
        found = dict(zip(ranges, self._reader.read(wanted), strict=True))
        by_start = sorted(found)
        examples = []
        for shard, sample in places:
            around = by_start[bisect.bisect_right(by_start, (shard, sample.start, float("inf"))) - 1]
            examples.append(self._example(shard, sample, found[around], around[1]))
        return examples

    def _place(self, number: int) -> tuple[int, TarSample]:
        if not 0 <= number < len(self):
            raise IndexError(f"example {number} of {len(self)}")
        shard = bisect.bisect_right(self._ends, number)
        before = self._ends[shard - 1] if shard else 0
        return shard, self._indexes[shard][number - before]

    def _example(self, shard: int, sample: TarSample, data: bytes, offset: int) -> Any:
        made: dict[str, Any] = {"__key__": sample.key, "__url__": self._files[shard].url}
        for field in sample.fields:
            made[field.name] = data[field.start - offset : field.start - offset + field.length]
        if self._decode is None:
            return made
        try:
            return self._decode(made)
        except Exception as error:
            # The user's traceback stays; without the sample's name nobody would find the file.
            error.add_note(f"while decoding the sample {sample.key!r} of {self._files[shard].url}")
            raise


def _check_cache(settings: InputSettings, files: Sequence[ShardFile]) -> None:
    if settings.cache == "disk":
        _refuse_unmarked(files, "a cache on disk needs one of them; a cache in memory does not")


def _refuse_unmarked(files: Sequence[ShardFile], rule: str) -> None:
    """Refuse to keep anything of a file that may change unseen: a later run would take the old one for it."""
    for file in files:
        if not file.tells_changes:
            what = f"{file.host} states neither ETag nor Last-Modified, so a changed file looks the same"
            raise InputError([Problem(what=what, rule=rule, file=file.url)])


def _joined(ranges: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return sorted ranges `(shard, start, end)` with neighbours joined."""
    joined: list[tuple[int, int, int]] = []
    for shard, start, end in ranges:
        if joined and joined[-1][0] == shard and start <= joined[-1][2] + _GAP_BYTES:
            joined[-1] = shard, joined[-1][1], max(end, joined[-1][2])
        else:
            joined.append((shard, start, end))
    return joined


def reads_through_autosync(dataset: object) -> bool:
    """Whether the size and number of requests, and the cache, have an effect for a dataset."""
    return callable(own(dataset, "with_settings"))
