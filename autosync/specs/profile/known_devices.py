"""The table of known devices: the share of their peak rates that training sustains, by class of operation.

`configs/devices.yaml` has the peak rates of data sheets, and shares that were fitted to throughputs of training
on one device (`benchmarks/device_rates`). Shares differ by precision: float32, TF32 on tensor cores, and mixed
precision.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal, TypeAlias

from autosync import documents
from autosync.documents import STRICT
from autosync.errors import InputError, UnknownNameError
from autosync.specs.profile.operations import OperationClass

Precision: TypeAlias = Literal["full", "mixed"]
"""The precision of training: `full` is float32, with TF32 where torch uses it, and `mixed` is autocast's."""

DEFAULT_DEVICE = "NVIDIA T4"
SCHEMA_KIND = "devices"
SCHEMA_VERSION = 1
MOST_SHARE = 2.0
"""Winograd's transformation saves up to three quarters of a convolution's operations, so shares may exceed 1."""
_MIXED_BYTES = 0.5
"""The share of float32's bytes that are counted in mixed precision. The shares are fitted to this count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassShares:
    """The shares of peak rates in one precision, by class.

    `peak` is in operations a second. `points` is the number of throughputs of this device. Shares of a device
    without any are those of similar devices. `memory` is the share of the peak bytes that all classes but two sustain.
    """

    __pydantic_config__ = STRICT

    peak: float
    points: int
    product: float
    batched_product: float
    convolution: float
    convolution_3x3: float
    grouped_convolution: float
    memory: float
    batch_norm_memory: float
    grouped_convolution_memory: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.peak) and self.peak > 0):
            raise ValueError(f"peak {self.peak} is no rate (finite and above 0)")
        for name in SHARES:
            if not 0 < getattr(self, name) <= MOST_SHARE:
                raise ValueError(f"{name} {getattr(self, name)} is no share (above 0, at most {MOST_SHARE:g})")


SHARES = tuple(name for name in ClassShares.__dataclass_fields__ if name not in ("peak", "points"))
"""The names of all shares."""
ARITHMETIC = SHARES[:5]
"""The classes with a rate of arithmetic."""


def memory_share(kind: OperationClass) -> str:
    """Return the name of the share of the peak bytes that a class sustains."""
    return f"{kind}_memory" if kind in ("batch_norm", "grouped_convolution") else "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDevice:
    """A device of the table. `also` are the names that torch gives it; devices of a `family` have similar shares.

    `bytes` is the peak rate of its memory a second. `tf32` and `mixed` are None if it has no tensor cores for them.
    """

    __pydantic_config__ = STRICT

    name: str
    also: tuple[str, ...] = ()
    family: str
    bytes: float
    fp32: ClassShares
    tf32: ClassShares | None = None
    mixed: ClassShares | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bytes) and self.bytes > 0):
            raise ValueError(f"{self.name}: bytes {self.bytes} is no rate (finite and above 0)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRate:
    """A known device that trains in one precision: the shares for products of matrices, convolutions and memory."""

    device: KnownDevice
    products: ClassShares
    convolutions: ClassShares
    memory: ClassShares

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def is_mixed(self) -> bool:
        return self.products is self.device.mixed

    def seconds(self, kind: OperationClass, operations: float, num_bytes: float) -> float:
        """Return the time of an operation: of its arithmetic or of its memory access, whichever is longer."""
        counted = num_bytes * (_MIXED_BYTES if self.is_mixed else 1.0)
        in_memory = counted / (self.device.bytes * float(getattr(self.memory, memory_share(kind))))
        if kind not in ARITHMETIC:
            return in_memory
        shares = self.convolutions if "convolution" in kind else self.products
        return max(operations / (shares.peak * float(getattr(shares, kind))), in_memory)

    def describe(self) -> str:
        """Return the note that a timeline gives about its computed times."""
        points = sum({id(one): one.points for one in (self.products, self.convolutions, self.memory)}.values())
        source = f"{points} of this device" if points else "none of this device, some of similar ones"
        return (
            "computed, not measured: per operation the larger of the times of its arithmetic and of its bytes, in "
            f"{self._precision}, at the shares of peak rates that training throughputs show ({source})"
        )

    @property
    def _precision(self) -> str:
        if self.is_mixed:
            return "mixed precision"
        in_tf32 = [
            words
            for shares, words in ((self.products, "products"), (self.convolutions, "convolutions"))
            if shares is self.device.tf32
        ]
        return f"float32 with {' and '.join(in_tf32)} in TF32" if in_tf32 else "float32"


def training_rate(
    device: KnownDevice, precision: Precision = "full", *, tf32_products: bool = False, tf32_convolutions: bool = True
) -> TrainingRate:
    """Return the rate of a device. In full precision, tensor cores are used where the flags say so.

    The flags' defaults are those of torch.
    """
    if precision == "mixed":
        if device.mixed is None:
            raise InputError(f"{device.name} has no tensor cores", rule="mixed precision is for devices that have some")
        return TrainingRate(device=device, products=device.mixed, convolutions=device.mixed, memory=device.mixed)
    in_tf32 = device.tf32 or device.fp32
    return TrainingRate(
        device=device,
        products=in_tf32 if tf32_products else device.fp32,
        convolutions=in_tf32 if tf32_convolutions else device.fp32,
        # Values in memory are float32 either way, and the published figures of such devices are of TF32.
        memory=in_tf32,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    __pydantic_config__ = STRICT

    devices: tuple[KnownDevice, ...]


@functools.cache
def known_devices() -> Mapping[str, KnownDevice]:
    """Return all devices of the table by name."""
    return {device.name: device for device in read_devices(devices_file())}


def devices_file() -> Path:
    """Return the file of the table."""
    return Path(str(resources.files("autosync.configs"))) / "devices.yaml"


def read_devices(path: Path) -> tuple[KnownDevice, ...]:
    """Return the devices of a file."""
    document = documents.read_document(path)
    fields = documents.check_schema(document, kind=SCHEMA_KIND, version=SCHEMA_VERSION)
    return documents.from_plain(fields, into=_Table, document=document).devices


def known_device(name: str) -> KnownDevice:
    """Return the device of that name; `T4`, and torch's `Tesla T4`, also name `NVIDIA T4`."""
    wanted = name.casefold()
    for device in known_devices().values():
        names = [device.name, device.name.removeprefix("NVIDIA "), *device.also]
        if wanted in (one.casefold() for one in names):
            return device
    raise UnknownNameError("device", name, known_devices())
