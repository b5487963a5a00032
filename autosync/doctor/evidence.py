"""The evidence for a diagnosis: the notes of each rank about its steps, and the rates of the links.

Times are seconds of the rank's own clock. Only durations are compared between ranks, never clocks.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

from autosync.documents import STRICT

KIND = "doctor-evidence"
VERSION = 1
_MOST_BYTES = 2**60


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedMessage:
    """A message of DDP (a bucket of gradients): its bytes, and when it was ready and done on this rank."""

    __pydantic_config__ = STRICT

    num_bytes: int
    ready: float
    done: float

    def __post_init__(self) -> None:
        _check_bytes(self.num_bytes)
        if not _in_order(self.ready, self.done):
            raise ValueError("a message is ready before it is done")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyGradient:
    """The bytes of a gradient, and when it was ready."""

    __pydantic_config__ = STRICT

    num_bytes: int
    ready: float

    def __post_init__(self) -> None:
        _check_bytes(self.num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedPass:
    """A forward pass and its backward pass. `backward_end` is the end of the computation, before any wait.

    `buffer_seconds` is the time of buffer broadcasts, and `search_seconds` the time of the search for unused
    parameters. Both lie between `begin` and `forward_end`. At `end`, DDP has handed over the synchronised gradients.
    Only rank 0 notes its `gradients`.
    """

    __pydantic_config__ = STRICT

    begin: float
    buffer_seconds: float = 0.0
    search_seconds: float = 0.0
    forward_end: float
    backward_end: float
    end: float
    messages: tuple[WatchedMessage, ...] = ()
    gradients: tuple[ReadyGradient, ...] = ()

    def __post_init__(self) -> None:
        if not _in_order(self.begin, self.forward_end, self.backward_end, self.end):
            raise ValueError("a pass begins, ends its forward pass, then its backward pass, then its transfers")
        if not 0 <= self.buffer_seconds + self.search_seconds <= self.forward_end - self.begin + 1e-6:
            raise ValueError("buffers and the search for unused parameters are parts of the forward pass")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStep:
    """One optimizer step with its passes in order. It lasts from the end of the step before to its own end.

    `loader_seconds` is the time in which the training loop waited for DataLoaders, and `first_batch_seconds` the part
    of it that was for the first batch of an epoch.
    """

    __pydantic_config__ = STRICT

    begin: float
    passes: tuple[WatchedPass, ...]
    update_begin: float
    end: float
    loader_seconds: float = 0.0
    first_batch_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.first_batch_seconds <= self.loader_seconds <= self.end - self.begin + 1e-6:
            raise ValueError("waiting for a loader is a part of the step, and waiting for a first batch a part of that")
        if not self.passes:
            raise ValueError("a step has a pass")
        times = [self.begin, *(time for one in self.passes for time in (one.begin, one.end)), self.update_begin]
        if not _in_order(*times, self.end):
            raise ValueError("the parts of a step follow one another")

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSettings:
    """The settings of the script's DDP that cost time. `num_unused` counts parameters that never got a gradient.

    `num_workers` is that of the DataLoader that gave the last batch; None if there was none.
    """

    __pydantic_config__ = STRICT

    find_unused_parameters: bool = False
    static_graph: bool = False
    broadcast_buffers: bool = True
    buffer_bytes: int = 0
    bucket_cap_mb: float | None = None
    num_unused: int = 0
    own_hook: str = ""
    num_workers: int | None = None

    def __post_init__(self) -> None:
        _check_bytes(self.buffer_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedVariable:
    """A parameter of the model: its bytes, and the fewest bytes that can carry one rank's gradient of one pass."""

    __pydantic_config__ = STRICT

    name: str
    num_bytes: int
    least_bytes: int

    def __post_init__(self) -> None:
        _check_bytes(self.num_bytes)
        _check_bytes(self.least_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """The use of a rank's machine during its steps, as shares of the time of all processors.

    `own` is the share of the rank with its data loader, and `others` that of all other programs, also of other ranks.
    `waited_seconds` is how long the rank's main thread was ready to run while no processor was free, or None if the
    system does not tell. Ranks on the same machine have the same `machine`.
    """

    __pydantic_config__ = STRICT

    machine: str
    own: float
    others: float
    waited_seconds: float | None = None
    seconds: float

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise ValueError(f"{self.seconds} s is no time in which processors were used (above 0)")


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceTraffic:
    """The network interface of a rank's node that carried most bytes during its steps, and the one that should.

    `chosen` is the value of GLOO_SOCKET_IFNAME that the launcher gave to the rank. The script may have changed it.
    """

    __pydantic_config__ = STRICT

    used: str
    used_bytes: int
    chosen: str
    chosen_bytes: int

    def __post_init__(self) -> None:
        _check_bytes(self.used_bytes)
        _check_bytes(self.chosen_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvidence:
    """The notes of one rank.

    After the last step, an all-reduce of one number took `small_message_seconds`, and one of `large_message_bytes` took
    `large_message_seconds`.
    """

    __pydantic_config__ = STRICT

    rank: int
    steps: tuple[WatchedStep, ...]
    settings: WatchedSettings
    variables: tuple[WatchedVariable, ...] = ()
    processors: Processors | None = None
    traffic: InterfaceTraffic | None = None
    small_message_seconds: float | None = None
    large_message_bytes: int = 0
    large_message_seconds: float | None = None

    def __post_init__(self) -> None:
        _check_bytes(self.large_message_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """The rate of a link in one direction and its expected rate, in bytes per second.

    `kind` is `node` for the link of a node, and `uplink` for that of a rack. The rate is measured if `is_measured`, and
    otherwise comes from the cluster file. `compared` says where the expected rate comes from.
    """

    kind: Literal["node", "uplink"]
    subject: str
    direction: Literal["out", "in"]
    rate: float
    expected: float
    is_measured: bool
    compared: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence of all ranks. `nodes` names the node of each rank. All ranks have the same number of steps.

    If `links` is empty, their rates are unknown, and `doubt` says why. `is_probed` says whether a probe has measured
    the cluster after these steps, and `wrong_interfaces` holds its warnings, each with its node.
    """

    ranks: tuple[RankEvidence, ...]
    nodes: tuple[str, ...]
    links: tuple[LinkRate, ...] = ()
    doubt: str = ""
    is_probed: bool = False
    wrong_interfaces: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.ranks or len(self.ranks) != len(self.nodes):
            raise ValueError("every rank has a node, and there is a rank")
        lengths = {len(one.steps) for one in self.ranks}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError("all ranks have the same number of steps, at least one")

    @property
    def settings(self) -> WatchedSettings:
        """The settings of DDP. They are equal on all ranks, as DDP requires."""
        return self.ranks[0].settings


def _check_bytes(number: int) -> None:
    if not 0 <= number <= _MOST_BYTES:
        raise ValueError("a number of bytes is from 0 to 2**60")


def _in_order(*times: float) -> bool:
    """Return whether all times are finite and in ascending order."""
    return all(map(math.isfinite, times)) and all(a <= b for a, b in itertools.pairwise(times))
