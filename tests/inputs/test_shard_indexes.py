"""Indexes that are kept are those of the shards, and nothing is read for them a second time."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from autosync.errors import InputError
from autosync.inputs.reader import ShardReader
from autosync.inputs.shard_indexes import KeptIndexes, index_shards
from autosync.inputs.storage import open_shard
from autosync.inputs.tar_index import TarField, TarSample
from autosync.inputs.tar_shards import TarShards
from autosync.specs.input_settings import InputSettings
from tests.helpers.shards import number_of, serving, write_shards

Read = Callable[[int, int], tuple[bytes, int]]


def _numbers(dataset: TarShards) -> list[int]:
    return [number_of(sample) for sample in dataset.__getitems__(range(len(dataset)))]


def _kept(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_a_kept_index_needs_no_request(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [5, 3, 0, 9])
    with serving(tmp_path) as server:
        server.tag = '"one"'
        urls = [f"{server.url}/{path.name}" for path in paths]
        first = TarShards(urls, index_folder=tmp_path / "indexes")
        assert server.num_requests > len(urls)
        server.num_requests = 0
        again = TarShards(urls, index_folder=tmp_path / "indexes")
        # One request opens a file.
        assert server.num_requests == len(urls)
        assert _numbers(first) == _numbers(again) == list(range(17))
        assert again.facts() == first.facts()
        # Another version of the files has another index.
        server.tag = '"two"'
        assert _numbers(TarShards(urls, index_folder=tmp_path / "indexes")) == list(range(17))
        assert len(_kept(tmp_path / "indexes")) == 2 * len(urls)
        server.tag = ""
        with pytest.raises(InputError, match=r"neither ETag nor Last-Modified.*an index that is kept needs"):
            TarShards(urls, index_folder=tmp_path / "indexes")


def test_a_shard_that_changed_is_read_again(tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path, [4])
    assert len(TarShards([path], index_folder=tmp_path / "indexes")) == 4
    os.utime(path, ns=(1, 1))
    assert len(TarShards([path], index_folder=tmp_path / "indexes")) == 4
    assert len(_kept(tmp_path / "indexes")) == 2
    write_shards(tmp_path, [6])
    assert _numbers(TarShards([path], index_folder=tmp_path / "indexes")) == list(range(6))


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path, [3])
    TarShards([path], index_folder=tmp_path / "indexes")
    (kept,) = _kept(tmp_path / "indexes")
    whole = kept.read_bytes()
    for place in range(0, len(whole), 37):
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :]):
            kept.write_bytes(damaged)
            assert _numbers(TarShards([path], index_folder=tmp_path / "indexes")) == [0, 1, 2]
    TarShards([path], index_folder=tmp_path / "indexes")
    assert _kept(tmp_path / "indexes") == [kept]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("starts", [512, 1536, 10**9, 512]),
        ("lengths", [-1, 1, 1, 1]),
        ("field_names", [0, 1, 2, 0]),
        ("key_bounds", [0, 11, 23]),
        ("field_bounds", [0, 3, 2, 4]),
        ("starts", [[512], [512], [512], [512]]),
        ("starts", [0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_an_index_that_does_not_fit_its_shard_is_not_taken(tmp_path: Path, name: str, value: list[float]) -> None:
    (path,) = write_shards(tmp_path, [2])
    TarShards([path], index_folder=tmp_path)
    (kept,) = tmp_path.glob("*.npz")
    with np.load(kept) as found:
        arrays = dict(found)
    assert KeptIndexes(tmp_path).get(open_shard(str(path))) is not None
    np.savez_compressed(kept, **{**arrays, name: np.array(value)})
    assert KeptIndexes(tmp_path).get(open_shard(str(path))) is None


def test_an_index_runs_no_code(tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path, [2])
    TarShards([path], index_folder=tmp_path)
    (kept,) = tmp_path.glob("*.npz")
    ran: list[int] = []

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return ran.append, (1,)

    with np.load(kept) as found:
        arrays = dict(found)
    np.savez_compressed(kept, **{**arrays, "names": np.array([Bomb(), Bomb()], dtype=object)})
    assert KeptIndexes(tmp_path).get(open_shard(str(path))) is None
    assert not ran


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path, [1])
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file.*the folder for indexes can be made"):
        TarShards([path], index_folder=tmp_path / "file")


def test_ranks_begin_elsewhere_and_find_what_others_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_shards(tmp_path, [1, 2, 3, 4])
    files = [open_shard(str(path)) for path in paths]
    settings = InputSettings(read_concurrency=1)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    order: list[str] = []
    for file in files:
        read = file.read

        def noted(start: int, length: int, *, url: str = file.url, read: Read = read) -> tuple[bytes, int]:
            order.append(url)
            return read(start, length)

        file.read = noted  # type: ignore[method-assign]
    indexes = index_shards(files, ShardReader(settings), settings, folder=tmp_path / "indexes")
    assert [len(one) for one in indexes] == [1, 2, 3, 4]
    assert list(dict.fromkeys(order)) == [str(paths[number]) for number in (2, 3, 0, 1)]
    order.clear()
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    indexes = index_shards(files, ShardReader(settings), settings, folder=tmp_path / "indexes")
    assert [len(one) for one in indexes] == [1, 2, 3, 4]
    assert not order


_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/.\0"), min_size=1, max_size=6)


_SAMPLES = st.tuples(_NAMES, st.lists(st.sampled_from("abc"), min_size=1, unique=True))


@hypothesis_settings(max_examples=60)
@given(st.lists(_SAMPLES, unique_by=lambda one: one[0]))
def test_any_archive_has_its_samples_in_its_index(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[str, list[str]]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    written = []
    with tarfile.open(folder / "a.tar", "w") as archive:
        for stem, extensions in wanted:
            for place, extension in enumerate(extensions):
                member = tarfile.TarInfo(f"{stem}.{extension}")
                member.size = place
                archive.addfile(member, io.BytesIO(bytes(place)))
            written.append((stem, [(extension, place) for place, extension in enumerate(extensions)]))
    settings = InputSettings()
    for _ in range(2):
        file = open_shard(str(folder / "a.tar"))
        (index,) = index_shards([file], ShardReader(settings), settings, folder=folder / "indexes")
        samples = [index[number] for number in range(len(index))]
        assert [(one.key, [(field.name, field.length) for field in one.fields]) for one in samples] == written


def test_a_name_that_is_no_text_is_kept(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        archive.addfile(tarfile.TarInfo("a\xe4.x"))
    settings = InputSettings()
    for _ in range(2):
        file = open_shard(str(tmp_path / "a.tar"))
        (index,) = index_shards([file], ShardReader(settings), settings, folder=tmp_path / "indexes")
        assert index[0] == TarSample("a\udce4", (TarField("x", index[0].start, 0),))
