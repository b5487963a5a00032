"""`autosync.loader`: a torch DataLoader under input settings, whose epochs are exact and can be continued."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch.utils.data import DataLoader, IterableDataset, Sampler, default_collate

from autosync.errors import InputError, OperationError, Problem
from autosync.inputs.dataset_facts import shard_sizes_of, under_settings
from autosync.inputs.epoch_order import EpochOrder, Shuffle
from autosync.inputs.fairness import UnfairHost, served_worse_both_ways
from autosync.inputs.host_rates import of_all_ranks, rates_of_hosts, window_rates
from autosync.inputs.measured_batches import MeasuredCollate, MeasuredDataset
from autosync.inputs.observation import InputReport, InputWatch
from autosync.inputs.order_identity import identity_of, refuse_another_order, refuse_other_ranks
from autosync.inputs.process_input import note_batch
from autosync.inputs.served_rates import RankPace, ServedRates, shares_at
from autosync.inputs.settings import GivenSettings, RankInput, input_of
from autosync.inputs.worker_start import WorkerStart, tells_failure
from autosync.right_of_way import marks
from autosync.specs.input_settings import InputSettings
from autosync.strategy.shares import are_even

_STATE_SCHEMA = "autosync.input_state/1"

_Asked = TypeVar("_Asked")


def loader(
    dataset: Any,
    settings: GivenSettings = None,
    *,
    batch_size: int = 1,
    shuffle: Shuffle | bool = "examples",
    seed: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    shares: Sequence[float] = (),
    drop_last: bool = False,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    pin_memory: bool = False,
    timeout_seconds: float = 0,
    worker_init_fn: Callable[[int], None] | None = None,
) -> InputLoader:
    """Return a DataLoader for this rank's part of a dataset, as a bundle, input settings or the path of either says.

    Without `settings`, the bundle that AUTOSYNC_BUNDLE names is used, if there is one. The shares of a bundle are those
    of the loader, unless `shares` says otherwise. The dataset has a length and gives examples by number
    (`__getitem__`). The order of an epoch depends on `seed` and the epoch; the ranks of torch.distributed share it,
    unless `rank` and `world_size` say otherwise. `batch_size` is that of one rank; with shares, it is the mean. See
    `EpochOrder` for `shuffle`, `shares` and `drop_last`.
    """
    given = input_of(settings)
    chosen = given.settings
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        what = f"is of type {type(dataset).__name__}, which decides its own order"
        rule = "a dataset with __len__ and __getitem__; autosync.inputs.tar_shards.TarShards reads tar shards"
        raise InputError([Problem(what=what, rule=rule, path=("dataset",))])
    if isinstance(shuffle, bool):
        shuffle = "examples" if shuffle else "none"
    this_rank, num_ranks = _of_group(rank, world_size)
    order = EpochOrder(
        shard_sizes=shard_sizes_of(dataset),
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        rank=this_rank,
        world_size=num_ranks,
        shares=tuple(shares) or _bundled_shares(given, batch_size, num_ranks),
        drop_last=drop_last,
    )
    if rank is None and num_ranks > 1:
        refuse_other_ranks(order, dataset)
    return InputLoader(
        under_settings(dataset, chosen),
        chosen,
        order,
        collate_fn=collate_fn,
        pin_memory=pin_memory,
        timeout_seconds=timeout_seconds,
        worker_init_fn=worker_init_fn,
    )


def _bundled_shares(given: RankInput, batch_size: int, num_ranks: int) -> tuple[int, ...]:
    """Return the shares of a bundle. The engine weighs gradients by them, so each rank must get exactly its share."""
    if given.shares and sum(given.shares) != batch_size * num_ranks:
        what = f"{batch_size} examples for each of {num_ranks} ranks are {batch_size * num_ranks} a step"
        rule = f"the bundle deals {sum(given.shares)}: {' '.join(map(str, given.shares))}"
        raise InputError([Problem(what=what, rule=rule, path=("batch_size",))])
    return given.shares


def _of_group(rank: int | None, num_ranks: int | None) -> tuple[int, int]:
    """Return the rank and the number of ranks: what the caller gave, else torch.distributed's.

    A rank that took itself for the only one would read all examples, as all others would.
    """
    import torch.distributed as dist

    if rank is not None and num_ranks is not None:
        return rank, num_ranks
    if rank is not None or num_ranks is not None:
        what = f"rank is {rank} and world_size is {num_ranks}"
        raise InputError([Problem(what=what, rule="both or neither", path=("rank",))])
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    started = os.environ.get("WORLD_SIZE", "1")
    if started != "1":
        what = f"there is no process group, and WORLD_SIZE is {started}: which examples are this rank's is not known"
        rule = "torch.distributed.init_process_group before the loader, or its arguments rank and world_size"
        raise InputError([Problem(what=what, rule=rule, path=("rank",))])
    return 0, 1


class _EpochBatches(Sampler[list[int]]):
    """The batches of the pass that begins next."""

    def __init__(self, order: EpochOrder) -> None:
        self.order = order
        self.epoch = 0
        self.num_seen = 0

    def __iter__(self) -> Iterator[list[int]]:
        return self.order.batches(self.epoch, self.num_seen)

    def __len__(self) -> int:
        return self.order.num_steps(self.num_seen)


class InputLoader(DataLoader[Any]):
    """A DataLoader with exact epochs, a state, and a report. Make one with `autosync.loader`.

    A pass that has delivered its last batch is complete, and the next one is of the next epoch. A pass that is left
    early is repeated from where it began: the start of
    the epoch, or the place that `load_state_dict` has set. One pass runs at a time: a new one ends those before it.
    """

    def __init__(
        self,
        dataset: Any,
        settings: InputSettings,
        order: EpochOrder,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        timeout_seconds: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> None:
        self.settings = settings
        self.order = order
        self._batches = _EpochBatches(order)
        self._measured = MeasuredDataset(dataset)
        self._num_seen = 0
        # A number for the pass that runs, and a new one for each change of its place.
        self._pass = 0
        # Whether the pass that runs has delivered its last batch.
        self._is_complete = False
        self._has_shares = bool(order.shares)
        self._watch = InputWatch()
        self._start = WorkerStart(settings, worker_init_fn)
        has_workers = settings.num_workers > 0
        super().__init__(
            self._measured,
            batch_sampler=self._batches,
            num_workers=settings.num_workers,
            collate_fn=MeasuredCollate(collate_fn or default_collate),
            pin_memory=pin_memory,
            timeout=timeout_seconds if has_workers else 0,
            worker_init_fn=self._start,
            prefetch_factor=settings.prefetch_factor if has_workers else None,
            persistent_workers=settings.persistent_workers and has_workers,
        )

    @property
    def epoch(self) -> int:
        """The number of the epoch that runs, or that begins next."""
        return self._batches.epoch

    @property
    def num_seen(self) -> int:
        """How many examples of the epoch all ranks together have got."""
        return self._num_seen

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass with this epoch; a place in it that `load_state_dict` has set stays."""
        if epoch != self._batches.epoch or self._is_complete:
            self._go_to(epoch, 0)

    def _go_to(self, epoch: int, num_seen: int) -> None:
        self._pass += 1
        self._is_complete = False
        self._batches.epoch = epoch
        self._batches.num_seen = self._num_seen = num_seen

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the batch that was delivered last. Batches that were only prefetched do not count."""
        return {
            "schema": _STATE_SCHEMA,
            "epoch": self._batches.epoch,
            "num_seen": self._num_seen,
            "order": identity_of(self.order, self._measured.dataset),
            # Shares that were given are given again.
            **({"shares": list(self.order.shares)} if self.order.shares and not self._has_shares else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a place that `state_dict` returned, perhaps with other settings, batches or ranks."""
        epoch, num_seen = state.get("epoch"), state.get("num_seen")
        if state.get("schema") != _STATE_SCHEMA or not isinstance(epoch, int) or not isinstance(num_seen, int):
            raise InputError("this is no state of an input loader", rule=f"what state_dict() returned: {_STATE_SCHEMA}")
        refuse_another_order(state.get("order"), identity_of(self.order, self._measured.dataset))
        if epoch < 0 or not 0 <= num_seen <= self.order.num_examples:
            raise InputError(
                f"the state is at example {num_seen} of epoch {epoch}",
                rule=f"an example from 0 to {self.order.num_examples}",
            )
        self._go_to(epoch, num_seen)
        shares = tuple(state.get("shares", ()))
        if not self._has_shares:
            # Shares are of so many ranks and of this batch; others begin with equal ones.
            suits = len(shares) == self.order.world_size and sum(shares) == self.order.step_size
            self._deal(shares if suits else ())

    def report(self) -> InputReport:
        """Return how long steps waited, what workers did, and what hosts delivered."""
        return self._watch.report()

    def unfair_hosts(self) -> tuple[UnfairHost, ...]:
        """Return the hosts that storage serves worse than the others, the worst first, with the evidence.

        All ranks call it together. It compares what was read through autosync since the report was reset.
        """
        return served_worse_both_ways(*rates_of_hosts(window_rates(list(self._watch.reads))))

    def served_rates(self) -> ServedRates:
        """Return the bytes of an example and the rate at which storage serves each host, from what ranks have read.

        All ranks call it together, after five steps or more. `autosync input deal` puts the rates into a bundle.
        """
        num_workers = max(self.settings.num_workers, 1)
        fetches = [(size, seconds / num_workers) for size, seconds in self._watch.fetches]
        hosts = rates_of_hosts(window_rates(fetches)).rates
        read = of_all_ranks([self._watch.num_read_bytes, self._watch.report().num_examples])
        example_bytes = sum(num_bytes for num_bytes, _ in read) / sum(count for _, count in read)
        return ServedRates(
            example_bytes=example_bytes, hosts={host: sum(rates) / len(rates) for host, rates in hosts.items()}
        )

    def deal_by_rate(self) -> tuple[int, ...]:
        """Deal fewer examples of each step to ranks on hosts that storage serves worse, from the next pass on.

        All ranks call it together, after five steps or more, and get the shares of a step; none if all get the same
        again. Their batches then differ in size: call `autosync.weigh(model, len(batch))` in each step. What was
        observed is forgotten, so that the next call sees what this one has changed.
        """
        if self._has_shares:
            raise OperationError(
                "the shares of this loader were given, and gradients may be weighed by them (autosync input deal "
                "puts measured rates into a bundle)"
            )
        unfair = self.unfair_hosts()
        pace = [self._watch.examples_per_second(self.settings.num_workers), self._watch.usual_away_seconds]
        sizes = self.order.shares or (self.order.batch_size,) * self.order.world_size
        found = of_all_ranks(pace)
        self.reset_report()
        shares: tuple[int, ...] = ()
        if unfair:
            # Who has waited longest for input waits for no other rank, so its time is that of the compute.
            compute = min(away / size for (_, away), size in zip(found, sizes, strict=True))
            overlaps = self.settings.num_workers > 0
            paces = [
                RankPace(examples_per_second=rate, compute_seconds=compute, overlaps=overlaps) for rate, _ in found
            ]
            shares = shares_at(paces, self.order.step_size)
        self._deal(() if are_even(shares) else shares)
        return tuple(map(int, self.order.shares))

    def _deal(self, shares: tuple[int, ...]) -> None:
        self.order = self._batches.order = replace(self.order, shares=shares)

    def pause(self) -> None:
        """Stop the workers where they are until `go_on`. Answers that they have asked for still arrive."""
        self._start.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let stopped workers go on."""
        self._start.signal(signal.SIGCONT)

    def reset_report(self) -> None:
        """Forget what was observed so far."""
        self._watch = InputWatch()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._is_complete:
            # The consumer took the last batch and did not ask once more, as islice and zip do not.
            self._go_to(self._batches.epoch + 1, 0)
        else:
            self._go_to(self._batches.epoch, self._batches.num_seen)
        this_pass = self._pass
        sizes = deque(self.order.step_sizes(self._num_seen))
        ours, reads_first = marks(), self.settings.right_of_way == "reads"
        is_first = True
        began = arrived = time.perf_counter()
        batches = self._from_torch(self._begun)
        while True:
            if self._pass != this_pass:
                raise OperationError(
                    "this pass of the loader is over: another one has begun, or its place was changed (set_epoch, "
                    "load_state_dict). One pass runs at a time; another loader of the same dataset has its own"
                )
            try:
                with ours.awaiting_batch(reads_first=reads_first):
                    batch, failure, times = self._from_torch(lambda: next(batches))
            except StopIteration as error:
                if sizes:
                    raise _ended_early(len(sizes), error) from error
                break
            if failure is not None:
                try:
                    raise _again(failure)
                finally:
                    # An error that its own frames hold is freed late, and torch's iterator with it.
                    del failure
            away, arrived = began - arrived, time.perf_counter()
            self._watch.add(arrived - began, times, is_first=is_first, away_seconds=away)
            note_batch(times)
            is_first = False
            self._num_seen += sizes.popleft()
            self._is_complete = not sizes
            yield batch
            began = time.perf_counter()
        self._go_to(self._batches.epoch + 1, 0)

    def _begun(self) -> Iterator[Any]:
        """Begin torch's pass, with new workers if one of the old ones has ended."""
        held: Any = self._iterator
        if held is not None and not all(worker.is_alive() for worker in held._workers):  # noqa: SLF001 - no other way
            self._iterator = None
        try:
            return super().__iter__()
        except BaseException:
            self._iterator = None
            raise

    def _from_torch(self, ask: Callable[[], _Asked]) -> _Asked:
        """Return what torch gives. After a failure of workers, or an interrupt, the next pass has new ones."""
        try:
            try:
                return ask()
            except (OSError, EOFError):
                # A worker that dies while its answer is fetched breaks the connection before torch learns of it.
                self._start.await_death()
                raise
        except RuntimeError as error:
            if not tells_failure(error):
                raise
            self._iterator = None
            raise self._start.explained(error) from error
        except KeyboardInterrupt:
            # Answers may be half read.
            self._iterator = None
            raise


def _ended_early(num_left: int, error: StopIteration) -> OperationError:
    """Return the error for a StopIteration that came from no sampler, such as one of `worker_init_fn`."""
    said = f": {error}" if str(error) else ""
    return OperationError(f"a StopIteration of the user's code would end the epoch {num_left} steps early{said}")


def _again(failure: Exception) -> Exception:
    """Return an error that crossed a process as it was before."""
    return type(failure)(failure.problems) if isinstance(failure, InputError) else failure
