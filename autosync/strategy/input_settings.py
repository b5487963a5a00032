"""The input settings of a strategy (see `specs.input_settings`), in one form and in words."""

from __future__ import annotations

from dataclasses import replace

from autosync.specs.input_settings import InputSettings
from autosync.strategy.wording import count
from autosync.units import exact_size


def canonical_input(settings: InputSettings | None) -> InputSettings | None:
    """Return settings without those that have no effect, at their defaults."""
    if settings is None:
        return None
    usual = InputSettings()
    found = settings
    if settings.num_workers == 0:
        found = replace(
            found,
            prefetch_factor=usual.prefetch_factor,
            persistent_workers=usual.persistent_workers,
            worker_threads=usual.worker_threads,
            # The step waits for its batch while the rank reads, so no read gives way.
            right_of_way="shared" if settings.right_of_way == "gradients" else settings.right_of_way,
        )
    if settings.cache == "none":
        found = replace(found, cache_limit_bytes=0)
    if settings.cache != "disk":
        found = replace(found, cache_folder="")
    return found


def input_in_words(settings: InputSettings) -> str:
    """Return settings in one line: `4 workers, prefetch 2`."""
    if settings.num_workers == 0:
        words = ["no workers"]
    else:
        words = [count(settings.num_workers, "worker"), f"prefetch {settings.prefetch_factor}"]
        if settings.worker_threads > 1:
            words.append(f"{settings.worker_threads} threads each")
    usual = InputSettings()
    if (settings.read_bytes, settings.read_concurrency) != (usual.read_bytes, usual.read_concurrency):
        words.append(f"requests of {exact_size(settings.read_bytes)}, {settings.read_concurrency} at a time")
    if settings.right_of_way != usual.right_of_way:
        words.append(f"{settings.right_of_way} first on the links")
    return ", ".join(words)
