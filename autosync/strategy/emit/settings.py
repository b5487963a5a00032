"""Settings of torch's DistributedDataParallel as plain values: constructor arguments, a hook, frozen parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autosync.specs.model import ModelSpec
from autosync.strategy.codecs import Cast, PowerSGD
from autosync.strategy.presets.buckets import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, MIB

Argument = bool | float | list[float]

START_POWER_SGD_STEP = 2
"""The earliest step in which torch lets PowerSGD with error feedback begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpSettings:
    """Settings of DistributedDataParallel; fields at their defaults leave it as it ships.

    The fields up to `batched_grad_copy` are constructor arguments with the same names. `bucket_cap_mb_list` (torch
    2.13) gives each bucket its own cap, and the last cap to all further buckets. `hook` is the codec of one of torch's
    communication hooks. `frozen` names parameters that never get a gradient; they must be set to need none, because
    DDP waits for the gradients of all others.
    """

    bucket_cap_mb: float | None = None
    bucket_cap_mb_list: tuple[float, ...] = ()
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    batched_grad_copy: bool = False
    hook: Cast | PowerSGD | None = None
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        caps = self.bucket_cap_mb_list if self.bucket_cap_mb is None else (self.bucket_cap_mb,)
        if any(cap <= 0 for cap in caps):
            raise ValueError(f"bucket caps {list(caps)} hold nothing (above 0 MiB)")
        if self.bucket_cap_mb is not None and self.bucket_cap_mb_list:
            raise ValueError("one cap and a list of them (one of the two)")

    @property
    def is_stock(self) -> bool:
        """Whether these are DDP's defaults; `find_unused_parameters` may be set, because some models need it."""
        return not (self.arguments().keys() - {"find_unused_parameters"}) and self.hook is None and not self.frozen

    @property
    def rebuilds_buckets(self) -> bool:
        """Whether DDP fills its buckets anew after the first step, in the order in which gradients were ready."""
        return self.static_graph or not self.find_unused_parameters

    @property
    def limits_bytes(self) -> tuple[int, ...]:
        """The sizes at which buckets are closed, in bytes, rounded as DDP rounds; the last one repeats."""
        if self.bucket_cap_mb_list:
            return tuple(int(cap * MIB) for cap in self.bucket_cap_mb_list)
        if self.bucket_cap_mb is not None:
            return (int(self.bucket_cap_mb * MIB),)
        return (DEFAULT_FIRST_CAP_BYTES, DEFAULT_CAP_BYTES)

    @property
    def least_torch(self) -> str:
        """The first version of torch that is known to accept these arguments."""
        return "2.13" if self.bucket_cap_mb_list or self.batched_grad_copy else "2.6"

    def arguments(self) -> dict[str, Argument]:
        """Return the constructor's arguments, without those at their defaults."""
        found: dict[str, Argument] = {}
        if self.bucket_cap_mb is not None:
            found["bucket_cap_mb"] = self.bucket_cap_mb
        if self.bucket_cap_mb_list:
            found["bucket_cap_mb_list"] = list(self.bucket_cap_mb_list)
        flags: Mapping[str, bool] = {
            "find_unused_parameters": self.find_unused_parameters,
            "gradient_as_bucket_view": self.gradient_as_bucket_view,
            "static_graph": self.static_graph,
            "batched_grad_copy": self.batched_grad_copy,
        }
        return {**found, **{name: True for name, is_set in flags.items() if is_set}}

    def to_plain(self) -> dict[str, Any]:
        """Return the settings as plain values, for ranks and files."""
        caps, frozen = list(self.bucket_cap_mb_list), list(self.frozen)
        return {**asdict(self), "bucket_cap_mb_list": caps, "frozen": frozen}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> DdpSettings:
        """Make settings from the result of `to_plain`."""
        hook = plain["hook"]
        if hook is not None:
            hook = Cast(**hook) if hook["kind"] == "cast" else PowerSGD(**hook)
        caps = tuple(plain["bucket_cap_mb_list"])
        return cls(**{**plain, "hook": hook, "bucket_cap_mb_list": caps, "frozen": tuple(plain["frozen"])})

    def __str__(self) -> str:
        """Return a text such as `DDP(bucket_cap_mb=8, gradient_as_bucket_view=True)`."""
        words = [f"{name}={_python(value)}" for name, value in self.arguments().items()]
        if self.hook is not None:
            words.append(f"hook={self.hook.kind}")
        return f"DDP({', '.join(words)})"


def _python(value: Argument) -> str:
    if isinstance(value, list):
        return f"[{', '.join(f'{cap:.10g}' for cap in value)}]"
    return str(value) if isinstance(value, bool) else f"{value:.10g}"


def as_python(value: Argument) -> str:
    """Return an argument as Python source, with all digits of caps."""
    if isinstance(value, list):
        return f"[{', '.join(map(as_python, value))}]"
    return repr(int(value)) if isinstance(value, float) and value.is_integer() else repr(value)


def as_it_ships(model: ModelSpec, *, is_replayed: bool) -> DdpSettings:
    """Return the settings of stock DDP for a model: the defaults, with `find_unused_parameters` if the model needs it.

    A replayed model has no unused parameters but those of its spec's sample of uses.
    """
    unused = any(parameter.reason == "unused" for parameter in model.untrained)
    unused = unused or any(variable.idle for variable in model.variables)
    return DdpSettings(find_unused_parameters=model.use_sample is not None or (unused and not is_replayed))
