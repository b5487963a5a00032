"""Real DataLoaders with real workers: each example once, the same order for any settings, and errors that say where."""

import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import autosync
from autosync.errors import InputError, OperationError
from autosync.inputs.loader import InputLoader
from autosync.inputs.settings import save_with
from autosync.inputs.tar_shards import TarShards
from autosync.right_of_way import marks
from autosync.specs.input_settings import InputSettings
from autosync.strategy.bundle import Bundle
from autosync.strategy.shares import deal
from tests.helpers.shards import ShardServer, number_of, serving, write_shards

# Python warns of forks beside threads; a DataLoader forks, and the server of these tests is a thread.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


def _epoch(batches: InputLoader) -> list[int]:
    return [number for batch in batches for number in batch.tolist()]


def test_workers_change_nothing_about_the_order(tmp_path: Path) -> None:
    shards = TarShards(write_shards(tmp_path, [7, 12, 4]), decode=number_of)
    alone = autosync.loader(shards, InputSettings(num_workers=0), batch_size=4)
    settings = InputSettings(num_workers=2, read_bytes=700, read_concurrency=3, cache="memory", cache_limit_bytes=9000)
    together = autosync.loader(shards, settings, batch_size=4)
    for _ in range(2):
        expected = _epoch(alone)
        assert sorted(expected) == list(range(23))
        assert _epoch(together) == expected
    assert (alone.epoch, together.epoch) == (2, 2)
    report = together.report()
    assert report.num_examples == 46
    assert [one.worker for one in report.workers] == [0, 1]
    assert sum(one.num_batches for one in report.workers) == report.num_steps == 12
    assert all(one.read_seconds > 0 for one in report.workers)


def test_an_epoch_continues_in_another_loader(tmp_path: Path) -> None:
    shards = TarShards(write_shards(tmp_path, [20]), decode=number_of)
    first = autosync.loader(shards, InputSettings(num_workers=2, prefetch_factor=4), batch_size=3, seed=5)
    seen: list[int] = []
    for batch in first:
        seen += batch.tolist()
        if len(seen) == 9:
            break
    state = first.state_dict()
    second = autosync.loader(shards, InputSettings(num_workers=0), batch_size=2, seed=5)
    second.load_state_dict(state)
    assert len(second) == 6
    assert sorted(seen + _epoch(second)) == list(range(20))
    assert sorted(_epoch(second)) == list(range(20))
    other = autosync.loader(shards, InputSettings(num_workers=0), batch_size=2, seed=6)
    with pytest.raises(InputError, match="of another order"):
        other.load_state_dict(state)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pass_that_another_one_has_ended_is_refused(num_workers: int) -> None:
    batches = autosync.loader(_Numbers(), InputSettings(num_workers=num_workers), batch_size=2, shuffle=False)
    running = iter(batches)
    assert [next(running).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    assert next(iter(batches)).tolist() == [0, 1]
    with pytest.raises(OperationError, match="this pass of the loader is over: another one has begun"):
        next(running)
    assert _epoch(batches) == list(range(12))


def test_a_look_at_a_batch_keeps_the_place_to_continue_at() -> None:
    batches = autosync.loader(_Numbers(), InputSettings(num_workers=0), batch_size=2, shuffle=False)
    batches.load_state_dict({**batches.state_dict(), "epoch": 3, "num_seen": 8})
    assert next(iter(batches)).tolist() == [8, 9]
    # As loops do that know DistributedSampler.
    batches.set_epoch(3)
    assert _epoch(batches) == [8, 9, 10, 11]
    assert (batches.epoch, batches.num_seen) == (4, 0)
    batches.load_state_dict({**batches.state_dict(), "num_seen": 8})
    batches.set_epoch(5)
    assert _epoch(batches) == list(range(12))


class _Numbers:
    """A dataset without shards, of which one example may end its worker."""

    def __init__(self, deadly: int = -1) -> None:
        self.deadly = deadly

    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> torch.Tensor:
        if number == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(number)


class _Marked(_Numbers):
    """A dataset whose examples are what `worker_init_fn` has written."""

    mark = -1

    def __getitem__(self, number: int) -> torch.Tensor:
        info = get_worker_info()
        assert info is not None
        assert id(info.dataset) == id(self)
        return torch.tensor(self.mark)


def _mark(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.mark = worker  # type: ignore[attr-defined]


def test_worker_init_fn_prepares_the_users_dataset() -> None:
    batches = autosync.loader(_Marked(), InputSettings(num_workers=2), batch_size=2, worker_init_fn=_mark)
    assert _epoch(batches) == [0, 0, 1, 1] * 3


def test_a_killed_worker_is_named() -> None:
    batches = autosync.loader(_Numbers(deadly=3), InputSettings(num_workers=2), batch_size=2, shuffle=False)
    with pytest.raises(OperationError, match=r"worker 1 of the input pipeline on .*pid.*\d+"):
        _epoch(batches)


def test_plain_datasets_and_ranks() -> None:
    found = [
        _epoch(autosync.loader(_Numbers(), InputSettings(num_workers=0), batch_size=2, rank=rank, world_size=3))
        for rank in range(3)
    ]
    assert [len(one) for one in found] == [4, 4, 4]
    assert sorted(number for one in found for number in one) == list(range(12))


def test_reads_of_workers_give_way_to_messages_unless_the_step_waits(tmp_path: Path) -> None:
    write_shards(tmp_path, [60])
    ours = marks()
    with serving(tmp_path) as server:
        shards = TarShards([f"{server.url}/000.tar"], decode=number_of)
        settings = InputSettings(num_workers=1, prefetch_factor=1, right_of_way="gradients")
        steps = iter(autosync.loader(shards, settings, batch_size=2, shuffle="none"))
        seen: list[int] = []
        try:
            # The worker may begin to read the next batch in the moment in which the step still waits for this one.
            for _ in range(8):
                ours.messages_travel = True
                seen += next(steps).tolist()
                _until_quiet(server)
                asked = server.num_requests
                ours.messages_travel = False
                if _is_asked(server, asked):
                    break
            else:
                pytest.fail("no read has given way")
        finally:
            ours.messages_travel = False
    assert seen == list(range(len(seen)))


def _is_asked(server: ShardServer, before: int) -> bool:
    """Whether a request comes soon."""
    end = time.monotonic() + 2
    while server.num_requests == before and time.monotonic() < end:
        time.sleep(0.01)
    return server.num_requests > before


def _until_quiet(server: ShardServer) -> None:
    """Wait until no request has come for a while."""
    before = -1
    while server.num_requests != before:
        before = server.num_requests
        time.sleep(0.3)


def test_errors_of_storage_cross_the_worker_with_file_and_host(tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path, [6])
    with serving(tmp_path) as server:
        shards = TarShards([f"{server.url}/{path.name}"], decode=number_of)
        batches = autosync.loader(shards, InputSettings(num_workers=1), batch_size=3)
        path.unlink()
        with pytest.raises(InputError, match=r"000\.tar.*127\.0\.0\.1:\d+ has no such file"):
            _epoch(batches)


def test_an_error_of_the_users_code_names_the_sample(tmp_path: Path) -> None:
    def decode(sample: dict[str, Any]) -> int:
        raise ValueError("no image")

    shards = TarShards(write_shards(tmp_path, [2]), decode=decode)
    with pytest.raises(ValueError, match="no image") as caught:
        shards[1]
    assert "some/000001" in caught.value.__notes__[0]


def test_datasets_that_decide_their_order_are_refused() -> None:
    class _Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([1])

    with pytest.raises(InputError, match="decides its own order"):
        autosync.loader(_Stream())
    with pytest.raises(InputError, match="settings are of type int"):
        autosync.loader(_Numbers(), 3)  # type: ignore[arg-type]


def _random_settings(chance: random.Random, folder: Path) -> InputSettings:
    cache = chance.choice(["none", "memory", "disk"])
    return InputSettings(
        num_workers=chance.randint(0, 3),
        prefetch_factor=chance.randint(1, 4),
        persistent_workers=chance.random() < 0.5,
        worker_threads=chance.randint(1, 2),
        read_bytes=chance.choice([512, 1000, 2**20]),
        read_concurrency=chance.choice([1, 3, 8]),
        cache=cache,  # type: ignore[arg-type]
        cache_limit_bytes=0 if cache == "none" else chance.choice([1000, 10**6]),
        cache_folder=str(folder / "cache"),
    )


def _random_loaders(
    chance: random.Random, shards: TarShards, folder: Path, *, seed: int, shuffle: str
) -> list[InputLoader]:
    """The loaders of one or more ranks, whose shares may be uneven."""
    world, batch_size, settings = chance.randint(1, 3), chance.randint(2, 7), _random_settings(chance, folder)
    shares = deal(world * batch_size, [chance.choice([1, 1, 2]) for _ in range(world)])
    shares = shares if chance.random() < 0.5 else ()
    return [
        autosync.loader(
            shards,
            settings,
            batch_size=batch_size,
            shuffle=shuffle,  # type: ignore[arg-type]
            seed=seed,
            rank=rank,
            world_size=world,
            shares=shares,
        )
        for rank in range(world)
    ]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_example_once_for_two_hundred_random_settings(tmp_path: Path) -> None:
    """Also if the epoch continues in its middle, with other settings, batches, shares and numbers of ranks."""
    chance = random.Random(0)
    sizes = [9, 0, 14, 6]
    shards = TarShards(write_shards(tmp_path, sizes), decode=number_of)
    for trial in range(200):
        shuffle, epoch = chance.choice(["none", "shards", "examples"]), trial % 3
        first = _random_loaders(chance, shards, tmp_path, seed=trial, shuffle=shuffle)
        for one in first:
            one.set_epoch(epoch)
        num_steps = chance.randint(0, len(first[0])) if trial % 2 else len(first[0])
        found = [n for one in first for batch in itertools.islice(one, num_steps) for n in batch.tolist()]
        left = sum(sizes) - len(found)
        state = first[0].state_dict()
        if left > 0:
            assert (state["epoch"], state["num_seen"]) == (epoch, len(found))
            then = _random_loaders(chance, shards, tmp_path, seed=trial, shuffle=shuffle)
            if left < len(then):
                # So few examples are refused for so many ranks, as another test has it.
                continue
            for one in then:
                one.load_state_dict(state)
                found += _epoch(one)
        assert sorted(found) == list(range(sum(sizes))), first[0].settings


def test_a_bundle_says_how_to_read(tmp_path: Path, small_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = InputSettings(num_workers=1, prefetch_factor=5)
    bundle = replace(small_bundle, strategy=replace(small_bundle.strategy, input=settings))
    save_with(tmp_path / "best.yaml", small_bundle, settings)
    for given in (bundle, tmp_path / "best.yaml", str(tmp_path / "best.yaml")):
        assert autosync.loader(_Numbers(), given, batch_size=2).settings == settings
    assert autosync.loader(_Numbers(), small_bundle, batch_size=2).settings == InputSettings()
    assert autosync.loader(_Numbers(), batch_size=2).settings == InputSettings()
    monkeypatch.setenv("AUTOSYNC_BUNDLE", str(tmp_path / "best.yaml"))
    assert autosync.loader(_Numbers(), batch_size=2).settings == settings
    with pytest.raises(InputError, match="settings are of type int"):
        autosync.loader(_Numbers(), 3, batch_size=2)  # type: ignore[arg-type]


def test_the_shares_of_a_bundle_are_dealt(small_bundle: Bundle) -> None:
    bundle = replace(small_bundle, strategy=replace(small_bundle.strategy, shares=(3, 1)))
    sizes = [
        [len(batch) for batch in autosync.loader(_Numbers(), bundle, batch_size=2, rank=rank, world_size=2)]
        for rank in range(2)
    ]
    assert set(sizes[0][:-1]) == {3}
    assert set(sizes[1][:-1]) == {1}
    with pytest.raises(InputError, match=r"batch_size: 3 examples for each of 2 ranks are 6 a step .*deals 4: 3 1"):
        autosync.loader(_Numbers(), bundle, batch_size=3, rank=0, world_size=2)
