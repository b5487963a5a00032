"""Real files and a real HTTP server: exact bytes, retries within a limit, and errors with file and host."""

import fcntl
import os
import random
import tarfile
import threading
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from autosync.errors import InputError, OperationError
from autosync.inputs import block_cache
from autosync.inputs.block_cache import DiskBlocks, MemoryBlocks
from autosync.inputs.http_requests import Patience
from autosync.inputs.meter import METER
from autosync.inputs.reader import ByteRange, ShardReader
from autosync.inputs.settings import load_settings, save_settings
from autosync.inputs.storage import open_shard
from autosync.inputs.storage_rates import measure_storage
from autosync.inputs.tar_shards import TarShards
from autosync.right_of_way import marks
from autosync.specs.input_settings import InputSettings
from tests.helpers.shards import number_of, serving, write_shard, write_shards


def _numbers(dataset: TarShards) -> list[int]:
    return [number_of(dataset[place]) for place in range(len(dataset))]


QUICK = Patience(num_retries=2, timeout_seconds=5, pause_seconds=0.01)


@pytest.mark.parametrize("cache", ["none", "memory", "disk"])
def test_any_ranges_are_exact(tmp_path: Path, cache: str) -> None:
    content = bytes(range(256)) * 40
    (tmp_path / "data").write_bytes(content)
    settings = InputSettings(
        read_bytes=512,
        read_concurrency=3,
        cache=cache,  # type: ignore[arg-type]
        cache_limit_bytes=0 if cache == "none" else 4000,
        cache_folder=str(tmp_path / "cache"),
    )
    file, reader = open_shard(str(tmp_path / "data")), ShardReader(settings)

    @hypothesis_settings(max_examples=30)
    @given(st.lists(st.tuples(st.integers(0, len(content)), st.integers(0, 3000)), max_size=4))
    def check(places: list[tuple[int, int]]) -> None:
        ranges = [ByteRange(file, at, min(length, len(content) - at)) for at, length in places]
        assert reader.read(ranges) == [content[at : at + length] for at, length in places]

    check()
    reader.close()
    if cache == "disk":
        assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("block-*")) <= 4000


def test_requests_give_way_to_messages_until_the_step_waits(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 2000)
    file, ours, found = open_shard(str(tmp_path / "data")), marks(), list[bytes]()
    reader = ShardReader(InputSettings(read_bytes=512, right_of_way="gradients"))
    thread = threading.Thread(target=lambda: found.extend(reader.read([ByteRange(file, 0, 2000)])), daemon=True)
    ours.messages_travel = True
    try:
        thread.start()
        thread.join(0.1)
        assert found == []
        with ours.awaiting_batch():
            thread.join(20)
        assert found == [b"x" * 2000]
    finally:
        ours.messages_travel = False
        reader.close()


def test_caches_keep_their_limit_and_refuse_damage(tmp_path: Path) -> None:
    memory = MemoryBlocks(100)
    for number in range(10):
        memory.put(str(number), bytes(40))
    assert memory.num_bytes <= 100
    assert memory.get("9") == bytes(40)
    assert memory.get("0") is None
    disk = DiskBlocks(tmp_path, 1000)
    disk.put("one", b"x" * 100)
    assert disk.get("one") == b"x" * 100
    (path,) = tmp_path.glob("block-*")
    path.write_bytes(path.read_bytes()[:-1] + b"y")
    assert disk.get("one") is None


def test_a_cache_whose_lock_is_held_keeps_nothing_and_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_cache, "_PAUSE_SECONDS", 0.0)
    disk = DiskBlocks(tmp_path, 1000)
    # A worker that holds it may be stopped.
    with (tmp_path / "lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        disk.put("one", b"x")
    assert disk.get("one") is None
    disk.put("one", b"x")
    assert disk.get("one") == b"x"


def test_a_cache_counts_its_blocks_after_a_crash(tmp_path: Path) -> None:
    disk = DiskBlocks(tmp_path, 1000)
    disk.put("one", bytes(396))
    # Room was reserved for two blocks: one was never begun, and one never finished.
    (tmp_path / "lock").write_text("1000")
    unfinished = tmp_path / "new-300-cut"
    unfinished.write_bytes(bytes(100))
    os.utime(unfinished, (0, 0))
    disk.put("two", bytes(396))
    assert disk.get("one") == disk.get("two") == bytes(396)
    assert not unfinished.exists()
    # A block that is being written counts.
    (tmp_path / "new-300-running").touch()
    (tmp_path / "lock").write_text("1000")
    disk.put("three", bytes(96))
    assert disk.get("three") == bytes(96)
    assert sum(disk.get(key) is not None for key in ("one", "two")) == 1


def test_a_cache_gives_up_a_block_if_those_being_written_leave_no_room(tmp_path: Path) -> None:
    disk = DiskBlocks(tmp_path, 1000)
    disk.put("one", bytes(96))
    (tmp_path / "new-900-running").touch()
    (tmp_path / "lock").write_text("1000")
    disk.put("two", bytes(396))
    assert disk.get("two") is None
    assert disk.get("one") == bytes(96)
    assert int((tmp_path / "lock").read_text()) == 1000


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_a_cache_tells_urls_apart_by_their_query(tmp_path: Path, cache: str) -> None:
    for number in range(2):
        write_shard(tmp_path / f"get?shard={number}", range(3 * number, 3 * number + 3))
    settings = InputSettings(
        cache=cache,  # type: ignore[arg-type]
        cache_limit_bytes=10**6,
        cache_folder=str(tmp_path / "cache"),
    )
    with serving(tmp_path) as server:
        urls = [f"{server.url}/get?shard={number}" for number in range(2)]
        server.tag = '"of-the-program"'
        assert _numbers(TarShards(urls, settings=settings)) == list(range(6))
        server.tag = ""
        if cache == "memory":
            assert _numbers(TarShards(urls, settings=settings)) == list(range(6))
        else:
            with pytest.raises(InputError, match="states neither ETag nor Last-Modified"):
                TarShards(urls, settings=settings)
            with pytest.raises(InputError, match="states neither ETag nor Last-Modified"):
                TarShards(urls).with_settings(settings)


def test_files_of_a_server_share_its_connections(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [1] * 20)
    with serving(tmp_path) as server:
        dataset = TarShards([f"{server.url}/{path.name}" for path in paths])
        assert _numbers(dataset) == list(range(20))
        assert server.num_connections <= InputSettings().read_concurrency


def test_connections_that_a_server_has_ended_are_no_failed_try(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(5000))
    reader = ShardReader(InputSettings(read_bytes=512, read_concurrency=6))
    with serving(tmp_path) as server:
        server.pause_seconds = 0.05
        file = open_shard(f"{server.url}/data", Patience(num_retries=0))
        assert reader.read([ByteRange(file, 0, 5000)]) == [bytes(5000)]
        assert server.num_connections == 6
        server.end_connections()
        assert file.read(0, 100) == (bytes(100), 0)
        reader.close()


def test_addresses_with_any_letters_are_read(tmp_path: Path) -> None:
    for name in ("my file.tar", "größe 100%.tar"):
        path = write_shard(tmp_path / name, range(2))
        with serving(tmp_path) as server:
            for url in (f"{server.url}/{name}", f"{server.url}/{quote(name)}", path.as_uri(), str(path)):
                assert _numbers(TarShards([url])) == [0, 1], url


def test_a_server_may_give_a_whole_file_as_such(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x")
    with serving(tmp_path) as server:
        server.gives_ranges = False
        assert open_shard(f"{server.url}/one", QUICK).read(0, 1) == (b"x", 0)
        server.cut_bytes = 0
        with pytest.raises(OperationError, match="gave 0 of 1 bytes"):
            open_shard(f"{server.url}/one", QUICK)


def test_shards_over_http_give_the_samples_of_the_files(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [5, 0, 8])
    settings = InputSettings(read_bytes=1024, read_concurrency=3)
    with serving(tmp_path) as server:
        urls = [f"{server.url}/{path.name}?secret=1" for path in paths]
        shards = TarShards(urls, decode=number_of, settings=settings, patience=QUICK)
        assert shards.shard_sizes == (5, 0, 8)
        METER.take()
        assert shards.__getitems__([12, 3, 4, 5, 3]) == [12, 3, 4, 5, 3]
        _, hosts = METER.take()
        assert list(hosts) == [server.host]
        assert "secret" not in shards.facts()[0].url


def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", range(3))
    with serving(tmp_path) as server:
        file = open_shard(f"{server.url}/a.tar", QUICK)
        server.answers = [503, 500]
        before = random.getstate()
        data, num_retries = file.read(0, 1000)
        assert random.getstate() == before
        assert data == (tmp_path / "a.tar").read_bytes()[:1000]
        assert num_retries == 2


def test_a_server_that_stays_busy_is_an_error_with_file_and_host(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", range(3))
    with serving(tmp_path) as server:
        file = open_shard(f"{server.url}/a.tar", QUICK)
        server.answers = [503] * 3
        with pytest.raises(OperationError, match=r"a\.tar: 127\.0\.0\.1:\d+ answered 503 .* 3 tries"):
            file.read(0, 1000)


def test_a_slow_server_is_an_error_after_the_timeout(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(100_000))
    patience = Patience(num_retries=1, timeout_seconds=0.3, pause_seconds=0)
    with serving(tmp_path) as server:
        file = open_shard(f"{server.url}/a", patience)
        server.pause_seconds = 0.1
        began = time.monotonic()
        with pytest.raises(OperationError, match=r"127\.0\.0\.1:\d+ gave \d+ of 100000 bytes before the timeout"):
            file.read(0, 100_000)
        assert time.monotonic() - began < 10


def test_answers_that_end_early_are_an_error(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", range(3))
    with serving(tmp_path) as server:
        file = open_shard(f"{server.url}/a.tar", QUICK)
        server.cut_bytes = 100
        with pytest.raises(OperationError, match=r"a\.tar: 127\.0\.0\.1:\d+ (gave 100 of 1000 bytes|ended its answer)"):
            file.read(0, 1000)


def test_missing_files_and_servers_without_ranges_are_named(tmp_path: Path) -> None:
    write_shard(tmp_path / "train.tar", range(3))
    with pytest.raises(InputError, match=r"trian\.tar.*did you mean"):
        open_shard(str(tmp_path / "trian.tar"))
    with serving(tmp_path) as server:
        with pytest.raises(InputError, match=r"other\.tar.*127\.0\.0\.1:\d+ has no such file"):
            open_shard(f"{server.url}/other.tar", QUICK)
        server.gives_ranges = False
        with pytest.raises(InputError, match="gives no ranges"):
            open_shard(f"{server.url}/train.tar", QUICK)
        url = server.url
    with pytest.raises(OperationError, match=r"127\.0\.0\.1:\d+ cannot be reached.*3 tries"):
        open_shard(f"{url}/train.tar", QUICK)


def test_a_file_that_changed_is_an_error(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.tar", range(3))
    shards = TarShards([path])
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(OperationError, match=r"a\.tar: the file on .* changed"):
        shards[0]


def test_fsspec_reads_what_it_knows(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    path = write_shard(tmp_path / "a.tar", range(4))
    system = fsspec.filesystem("memory")
    system.pipe_file("/shards/a.tar", path.read_bytes())
    try:
        shards = TarShards(["memory://shards/a.tar"], decode=number_of)
        assert [shards[number] for number in range(4)] == [0, 1, 2, 3]
        with pytest.raises(InputError, match="no such file"):
            open_shard("memory://shards/b.tar")
    finally:
        system.rm("/shards", recursive=True)


def test_a_shard_that_is_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.tar", range(3))
    whole = path.read_bytes()
    cut = tmp_path / "cut.tar"
    with tarfile.open(path) as archive:
        end = sum(512 + -(-member.size // 512) * 512 for member in archive)
    for length in range(0, end + 512, 128):
        cut.write_bytes(whole[:length])
        with pytest.raises(OperationError, match=r"cut\.tar: the shard on .* is truncated or damaged"):
            TarShards([cut])
    cut.write_bytes(whole[: end + 512])
    assert len(TarShards([cut])) == 3


def test_data_behind_the_end_of_an_archive_is_an_error(tmp_path: Path) -> None:
    one, two = write_shards(tmp_path, [2, 2])
    joined = tmp_path / "joined.tar"
    joined.write_bytes(one.read_bytes() + two.read_bytes())
    with pytest.raises(OperationError, match=r"joined\.tar: the shard on .* more data follows the end at byte"):
        TarShards([joined], settings=InputSettings(read_bytes=512))
    # A hole that begins at a header looks like the end, too.
    whole = one.read_bytes()
    joined.write_bytes(bytes(1024) + whole[1024:])
    with pytest.raises(OperationError, match="more data follows the end at byte 0"):
        TarShards([joined])
    joined.write_bytes(one.read_bytes() + bytes(10**6))
    assert len(TarShards([joined])) == 2


def test_what_is_no_sample_is_an_error(tmp_path: Path) -> None:
    for name, words in (("README", "no extension"), ("a.x", "two files 'x'")):
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            archive.addfile(tarfile.TarInfo(name))
            archive.addfile(tarfile.TarInfo(name))
        with pytest.raises(OperationError, match=words):
            TarShards([tmp_path / "a.tar"])
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        link = tarfile.TarInfo("a.x")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(OperationError, match="no plain file"):
        TarShards([tmp_path / "a.tar"])


def test_rates_cover_every_size_and_concurrency(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(50_000))
    rates = measure_storage([open_shard(str(tmp_path / "a"))], sizes=[1024, 4096], concurrencies=[1, 2], seconds=0.01)
    assert [(one.read_bytes, one.read_concurrency) for one in rates] == [(1024, 1), (1024, 2), (4096, 1), (4096, 2)]
    assert all(one.rate.low <= one.rate.value <= one.rate.high and one.rate.value > 0 for one in rates)


def test_settings_have_a_file_and_refuse_mistakes(tmp_path: Path) -> None:
    settings = InputSettings(num_workers=3, cache="disk", cache_limit_bytes=10, cache_folder="/x")
    for name in ("a.yaml", "a.json"):
        save_settings(tmp_path / name, settings)
        assert load_settings(tmp_path / name) == settings
    (tmp_path / "b.yaml").write_text("schema: autosync.input_settings/1\nnum_workers: -1\nprefetch: 3\n")
    with pytest.raises(InputError, match=r"b\.yaml:3: prefetch"):
        load_settings(tmp_path / "b.yaml")
    with pytest.raises(InputError, match="num_workers: is -1") as caught:
        InputSettings(num_workers=-1, cache="memory")
    assert "cache_limit_bytes" in str(caught.value)
