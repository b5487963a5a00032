"""Writes input settings as arguments of torch's DataLoader."""

from __future__ import annotations

from dataclasses import replace

from autosync.specs.input_settings import InputSettings

LoaderArguments = dict[str, bool | int]


def loader_arguments(settings: InputSettings | None) -> LoaderArguments | None:
    """Return the arguments of a DataLoader; None if they are left to the script."""
    if settings is None:
        return None
    if settings.num_workers == 0:
        return {"num_workers": 0}
    return {
        "num_workers": settings.num_workers,
        "prefetch_factor": settings.prefetch_factor,
        "persistent_workers": settings.persistent_workers,
    }


def loader_notes(settings: InputSettings | None) -> list[str]:
    """Return notes on what a DataLoader's arguments do not express."""
    if settings is None:
        return []
    found = []
    if settings.num_workers and settings.worker_threads > 1:
        found.append(f"each worker was tuned with torch.set_num_threads({settings.worker_threads})")
    usual = InputSettings()
    reads = replace(
        usual,
        read_bytes=settings.read_bytes,
        read_concurrency=settings.read_concurrency,
        cache=settings.cache,
        cache_limit_bytes=settings.cache_limit_bytes,
        cache_folder=settings.cache_folder,
        right_of_way=settings.right_of_way,
    )
    if reads != usual:
        found.append("the tuned requests, cache and right of way need autosync.loader")
    return found


def loader_lines(settings: InputSettings | None) -> tuple[list[str], list[str]]:
    """Return the import lines of a DataLoader and the lines that make one."""
    arguments = loader_arguments(settings)
    if arguments is None:
        return [], []
    return ["from torch.utils.data import DataLoader"], [
        "",
        "",
        "LOADER = {",
        *(f'    "{name}": {value},' for name, value in arguments.items()),
        "}",
        "",
        "",
        "def loader(dataset, **options):",
        '    """A DataLoader as tuned; `options` are others of its arguments, such as batch_size."""',
        "    return DataLoader(dataset, **{**LOADER, **options})",
    ]
