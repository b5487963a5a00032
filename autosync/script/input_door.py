"""Gives the DataLoaders of an unchanged script the input settings of its bundle.

The settings are applied when a training loop asks a loader for its batches; the loader itself keeps the script's
values. Evaluation keeps the script's settings: a loop without gradients, or while a wrapped model is in evaluation
mode.

**What must stay the same.** Each rank gets the same batches, and draws the same random numbers, as without autosync.
Batches come from the script's own sampler, so their order stays. Random numbers do not stay by themselves: each worker
has a stream of its own, and another number of workers deals examples to other streams. So a dataset that draws random
numbers is refused at its first batch (see `input_guard`, which has the other cases: what a dataset remembers, and what
it asks about its worker). `input_batches` has what a sampler draws, and when.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from autosync.inputs.loader import InputLoader
from autosync.script.input_batches import WatchedBatches
from autosync.script.input_guard import ExampleGuard, GuardedCollate, GuardedStart
from autosync.specs.input_settings import InputSettings
from autosync.strategy.input_settings import canonical_input, input_in_words

Method = Callable[..., Any]


class InputDoor:
    """Gives the loaders of training loops the settings. `tell` hears of each loader once."""

    def __init__(
        self, settings: InputSettings, *, is_training: Callable[[], bool], tell: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._is_training = is_training
        self._tell = tell
        self._told: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()

    def replacing(self, stock: Method) -> Method:
        """Return what replaces `DataLoader._get_iterator`, which is `stock`."""

        def get_iterator(loader: DataLoader[Any]) -> Any:
            if isinstance(loader, InputLoader) or not torch.is_grad_enabled() or not self._is_training():
                return stock(loader)
            given = _for(loader, self._settings)
            if _settings_of(loader) == canonical_input(given):
                return stock(loader)
            reason = why_not(loader, given)
            change = f"the script has {input_in_words(_settings_of(loader))}, its bundle {input_in_words(given)}"
            if loader not in self._told:
                self._told.add(loader)
                self._tell(
                    f"input: {change}" + (f"; this loader keeps the script's, because {reason}" if reason else "")
                )
            if reason:
                return stock(loader)
            with _with_settings(loader, given, change) as watched:
                batches = stock(loader)
            if watched is not None:
                watched.watch(batches, is_start_watched=0 in (given.num_workers, loader.num_workers))
            return batches

        return get_iterator


def _for(loader: DataLoader[Any], settings: InputSettings) -> InputSettings:
    """Return the settings for a script's loader: with the script's `persistent_workers`, and without what it ignores.

    Workers that live on would not see what the script changes in its dataset between epochs.
    """
    return InputSettings(
        num_workers=settings.num_workers,
        prefetch_factor=settings.prefetch_factor,
        worker_threads=settings.worker_threads,
        persistent_workers=loader.persistent_workers,
    )


def _settings_of(loader: DataLoader[Any]) -> InputSettings:
    """Return the settings of a script's loader."""
    if loader.num_workers == 0:
        return InputSettings(num_workers=0)
    return InputSettings(
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor or InputSettings().prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def why_not(loader: DataLoader[Any], settings: InputSettings) -> str:
    """Return why a loader cannot have other settings than the script's; empty if it can."""
    if isinstance(loader.dataset, IterableDataset):
        return "an iterable dataset decides its own order"
    if not getattr(loader, "in_order", True):
        return "without in_order the order of batches depends on the workers"
    if settings.num_workers == 0 and (loader.timeout > 0 or loader.persistent_workers):
        return "its timeout or persistent_workers needs workers"
    if settings.num_workers == 0 and loader.worker_init_fn is not None:
        return "its worker_init_fn needs workers"
    start = torch.multiprocessing.get_start_method()
    if loader.num_workers == 0 and start != "fork":
        return f"workers start by {start}, which needs a script that can be imported"
    return ""


@contextlib.contextmanager
def _with_settings(loader: DataLoader[Any], settings: InputSettings, change: str) -> Iterator[WatchedBatches | None]:
    """Give the loader other settings while it makes its iterator, which keeps what it needs.

    Its sampler is watched if batches are asked for at other times.
    """
    dataset, collate = loader.dataset, loader.collate_fn
    guard = ExampleGuard(dataset, collate, change)
    has_workers = settings.num_workers > 0
    sampler = "sampler" if loader.batch_sampler is None else "batch_sampler"
    given: dict[str, Any] = {
        "num_workers": settings.num_workers,
        "prefetch_factor": settings.prefetch_factor if has_workers else None,
        "worker_init_fn": GuardedStart(
            loader.worker_init_fn,
            settings.worker_threads,
            guard,
            is_guarded=settings.num_workers != loader.num_workers,
        ),
    }
    watched: WatchedBatches | None = None
    if (settings.num_workers, settings.prefetch_factor) != (loader.num_workers, loader.prefetch_factor):
        given[sampler] = watched = WatchedBatches(
            getattr(loader, sampler),
            dataset,
            loader.generator,
            change=change,
            num_ahead=loader.num_workers * (loader.prefetch_factor or 0),
            # Without workers, batches are made in this process, between its own random numbers.
            begins=(lambda: None) if has_workers else guard.begin,
        )
    if settings.num_workers != loader.num_workers:
        given["collate_fn"] = GuardedCollate(collate, guard)
    before = {name: loader.__dict__[name] for name in given}
    # Past DataLoader.__setattr__, which refuses another sampler.
    loader.__dict__.update(given)
    try:
        yield watched
    finally:
        loader.__dict__.update(before)
