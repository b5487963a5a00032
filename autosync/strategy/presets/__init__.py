"""Presets: strategy builders that reproduce known hand-designed systems, each with the source of its rule.

A preset is a function `(model, cluster, *, options) -> Strategy`. `build_preset` checks the strategy that it builds, so
a preset gives a legal strategy or an error with the reason. Other packages add presets through the entry-point group
`autosync.presets`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autosync.errors import DoesNotApplyError, InputError, UnknownNameError
from autosync.registry import Registry
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.representation import Strategy

_HERE = "autosync.strategy.presets"

PRESETS = Registry(
    "preset",
    {
        "all_reduce_chunks": f"{_HERE}.chunks:all_reduce_chunks",
        "all_reduce_per_variable": f"{_HERE}.all_reduce:all_reduce_per_variable",
        "bf16": f"{_HERE}.lossy:bf16",
        "byteps": f"{_HERE}.byteps:byteps",
        "bytescheduler": f"{_HERE}.bytescheduler:bytescheduler",
        "caramel": f"{_HERE}.caramel:caramel",
        "ddp": f"{_HERE}.ddp:ddp",
        "ddp_cap": f"{_HERE}.ddp:ddp_cap",
        "dgc": f"{_HERE}.lossy:dgc",
        "diloco": f"{_HERE}.stale:diloco",
        "fp16": f"{_HERE}.lossy:fp16",
        "fsdp": f"{_HERE}.fsdp:fsdp",
        "gpipe": f"{_HERE}.pipelines:gpipe",
        "hierarchical": f"{_HERE}.all_reduce:hierarchical",
        "horovod_fusion": f"{_HERE}.horovod:horovod_fusion",
        "int8": f"{_HERE}.lossy:int8",
        "interleaved_1f1b": f"{_HERE}.pipelines:interleaved_1f1b",
        "local_sgd": f"{_HERE}.stale:local_sgd",
        "p3": f"{_HERE}.p3:p3",
        "parallax": f"{_HERE}.parallax:parallax",
        "partitioned_all_reduce": f"{_HERE}.chunks:partitioned_all_reduce",
        "pipedream": f"{_HERE}.pipelines:pipedream",
        "pipedream_2bw": f"{_HERE}.pipelines:pipedream_2bw",
        "pipedream_flush": f"{_HERE}.pipelines:pipedream_flush",
        "poseidon": f"{_HERE}.poseidon:poseidon",
        "power_sgd": f"{_HERE}.lossy:power_sgd",
        "ps": f"{_HERE}.parameter_server:ps",
        "ps_load_balanced": f"{_HERE}.parameter_server:ps_load_balanced",
        "ps_partitioned": f"{_HERE}.parameter_server:ps_partitioned",
        "ps_uneven_partitioned": f"{_HERE}.parameter_server:ps_uneven_partitioned",
        "rack_levels": f"{_HERE}.rack_levels:rack_levels",
        "random_axis_partitioned_all_reduce": f"{_HERE}.chunks:random_axis_partitioned_all_reduce",
        "sharded": f"{_HERE}.sharded:sharded",
        "sign": f"{_HERE}.lossy:sign",
        "ssp": f"{_HERE}.stale:ssp",
        "tictac": f"{_HERE}.tictac:tictac",
        "uneven_batches": f"{_HERE}.uneven_batches:uneven_batches",
    },
)


def preset_names() -> tuple[str, ...]:
    """Return the names of all known presets, sorted."""
    return PRESETS.names()


def preset_summary(name: str) -> str:
    """Return what a preset does, in one line: the first line of its docstring."""
    return (inspect.getdoc(PRESETS.get(name)) or "").partition("\n")[0]


def preset_options(name: str) -> Mapping[str, Any]:
    """Return the options of a preset with their defaults."""
    parameters = inspect.signature(PRESETS.get(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def build_preset(name: str, model: ModelSpec, cluster: ClusterSpec, **options: Any) -> Strategy:
    """Return the strategy of a preset for a model on a cluster; raise an error with the reason if it is not legal.

    The strategy is named after the preset and the given options: `ddp`, `ddp_cap(cap_bytes=4000000)`.
    """
    preset = PRESETS.get(name)
    known = preset_options(name)
    for option in options:
        if option not in known:
            raise UnknownNameError(f"option of preset {name}", option, known)
    try:
        strategy: Strategy = preset(model, cluster, **options)
        legality.check(strategy, model, cluster)
    except InputError as error:
        # The preset's name makes the reason readable where several presets are built at once.
        raise error.within("preset", name) from error
    given = ", ".join(f"{option}={value}" for option, value in options.items())
    return replace(strategy, name=f"{name}({given})" if given else name)


__all__ = ["PRESETS", "DoesNotApplyError", "build_preset", "preset_names", "preset_options", "preset_summary"]
