"""Writes settings of stock DDP as a Python file that a training script imports, and as fields for programs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from autosync import units
from autosync.documents import to_plain
from autosync.specs.cluster import ClusterSpec
from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.canonical import strategy_id
from autosync.strategy.codecs import Cast, PowerSGD
from autosync.strategy.emit.ddp import buckets_under, settings_for
from autosync.strategy.emit.loader import loader_arguments, loader_lines, loader_notes
from autosync.strategy.emit.settings import START_POWER_SGD_STEP, DdpSettings, as_python
from autosync.strategy.presets.common import is_sparse_to_ddp
from autosync.strategy.representation import Strategy
from autosync.strategy.wording import count

SCHEMA = "autosync.ddp-settings/1"
LINE_LENGTH = 100
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """Settings of an engine: a Python file with a function `wrap(model)`, and the same settings as fields.

    If the strategy has input settings, the file also has a function `loader(dataset)`.
    """

    python: str
    fields: dict[str, Any]


def emit_ddp(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Emitted:
    """Return a strategy as settings of torch's DistributedDataParallel; raise DoesNotApplyError if DDP cannot do it."""
    return emit_settings(settings_for(strategy, model, cluster), strategy, model, cluster)


def emit_settings(settings: DdpSettings, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Emitted:
    """Return settings that express a strategy as a file and as fields; DDP's flags come from the settings alone."""
    buckets = buckets_under(settings, model, cluster)
    notes = [*_notes(settings, buckets, model, cluster), *loader_notes(strategy.input)]
    return Emitted(
        python=_python(settings, strategy.input, notes, f"{model.name} on {cluster.name}"),
        fields={
            "schema": SCHEMA,
            "model": model.name,
            "cluster": cluster.name,
            "strategy_id": strategy_id(strategy, model, cluster),
            "arguments": settings.arguments(),
            "comm_hook": None if settings.hook is None else to_plain(settings.hook),
            "frozen": list(settings.frozen),
            "loader": loader_arguments(strategy.input),
            "least_torch": settings.least_torch,
            "buckets": [
                {"bytes": _size(bucket), "variables": [variable.name for variable in bucket]} for bucket in buckets
            ],
            "notes": notes,
        },
    )


def call(settings: DdpSettings) -> str:
    """Return the call of DDP's constructor on one line."""
    arguments = [f"{name}={as_python(value)}" for name, value in settings.arguments().items()]
    return f"DistributedDataParallel({', '.join(['model', *arguments])})"


def _size(bucket: list[Variable]) -> int:
    return sum(variable.num_bytes for variable in bucket)


def _notes(settings: DdpSettings, buckets: list[list[Variable]], model: ModelSpec, cluster: ClusterSpec) -> list[str]:
    """Return notes that users of the settings should know."""
    smallest, largest = (units.format_size(size) for size in (min(map(_size, buckets)), max(map(_size, buckets))))
    span = largest if smallest == largest else f"{smallest} to {largest}"
    learned = ", from the second step on: in the first DDP learns their order" if settings.rebuilds_buckets else ""
    found = [
        f"{count(len(buckets), 'bucket')} of {span}{learned}",
        f"needs torch {settings.least_torch} or newer",
    ]
    if settings.gradient_as_bucket_view:
        found.append("gradients are views into buckets: zero_grad() is fine, detach_() on a gradient is not")
        found.append("the next backward pass changes a gradient that the script has kept: clone() it")
    if settings.frozen:
        found.append(
            f"{count(len(settings.frozen), 'parameter')} that got no gradient must never get one: frozen first"
        )
    if settings.hook is not None:
        found.append("the hook changes gradients: training is not exactly the same")
    if any(is_sparse_to_ddp(variable, model, cluster) for variable in model.variables):
        found.append("torch 2.13's all-reduce of sparse gradients on gloo now and then corrupts memory")
    return found


def _python(settings: DdpSettings, reads: InputSettings | None, notes: list[str], about: str) -> str:
    hook_import, hook_lines = _hook_lines(settings)
    loader_import, loader = loader_lines(reads)
    return "\n".join(
        [
            f'"""Stock DDP for {_as_text(about)}, as `autosync emit --to ddp` found it.',
            "",
            *[f"- {note}" for note in notes],
            '"""',
            "",
            *hook_import,
            "from torch.nn.parallel import DistributedDataParallel",
            *loader_import,
            "",
            *_arguments(settings),
            "",
            "",
            "def wrap(model, **options):",
            '    """The model under DDP as tuned; `options` are others of its arguments, such as device_ids."""',
            *_frozen_lines(settings),
            f"    {'ddp = ' if hook_lines else 'return '}DistributedDataParallel(model, **{{**ARGUMENTS, **options}})",
            *hook_lines,
            *loader,
            "",
        ]
    )


def _arguments(settings: DdpSettings) -> list[str]:
    lines = ["ARGUMENTS = {"]
    for name, value in settings.arguments().items():
        text = f'    "{name}": {as_python(value)},'
        if len(text) <= LINE_LENGTH or not isinstance(value, list):
            lines.append(text)
            continue
        lines.append(f'    "{name}": [')
        row = "       "
        for cap in map(as_python, value):
            if len(row) + len(cap) + 2 > LINE_LENGTH:
                lines.append(row)
                row = "       "
            row += f" {cap},"
        lines += [row, "    ],"]
    return [*lines, "}"]


def _frozen_lines(settings: DdpSettings) -> list[str]:
    if not settings.frozen:
        return []
    names = [f"        {_as_string(name)}," for name in settings.frozen]
    return ["    for name in (", *names, "    ):", "        model.get_parameter(name).requires_grad_(False)"]


def _as_text(text: str) -> str:
    """Return text that is safe within a docstring: without quotes that end it, and without escapes."""
    return text.encode("unicode_escape").decode("ascii").replace('"', "'")


def _as_string(text: str) -> str:
    return f'"{text}"' if _PLAIN.fullmatch(text) else repr(text)


def _hook_lines(settings: DdpSettings) -> tuple[list[str], list[str]]:
    """Return the import lines of a hook and the lines that register it."""
    hooks = "torch.distributed.algorithms.ddp_comm_hooks"
    match settings.hook:
        case Cast(dtype=dtype):
            name = "bf16_compress_hook" if dtype == "bfloat16" else "fp16_compress_hook"
            return [f"from {hooks}.default_hooks import {name}"], [
                f"    ddp.register_comm_hook(None, {name})",
                "    return ddp",
            ]
        case PowerSGD(rank=rank, error_feedback=feedback):
            state = [
                "    state = PowerSGDState(",
                "        process_group=None,",
                f"        matrix_approximation_rank={rank},",
                f"        use_error_feedback={feedback},",
                f"        start_powerSGD_iter={START_POWER_SGD_STEP},",
                "    )",
            ]
            register = ["    ddp.register_comm_hook(state, powerSGD_hook)", "    return ddp"]
            return [f"from {hooks}.powerSGD_hook import PowerSGDState, powerSGD_hook"], [*state, *register]
    return [], []
