"""The request of a probe to its ranks, and the answer of each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from autosync.documents import STRICT

SETTINGS_KIND = "probe-settings"
ANSWER_KIND = "probe-answer"
VERSION = 1

BACKEND = "gloo"
"""The backend with which a probe measures every cluster."""

SECONDS_A_NODE = 10.0
"""The time that a node's links may take, at most."""

StreamKind = Literal["out", "in", "both", "within", "rack_out", "rack_in"]
LoadPurpose = Literal["screen", "again", "alone", "together"]
Ways: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of nodes, sender and receiver, by position in the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """The amount of measurement.

    A stream runs for `stream_seconds`: the first `settle_seconds` do not count, and the rest gives `num_windows`
    samples. Streams, messages and compute are measured in `num_rounds` rounds, so that a short disturbance does not
    decide the result. Each point of a curve takes about `point_seconds`. On slow links it takes longer, and a curve
    ends before a size that would need more than `most_point_seconds`. A mixed step waits `pause_seconds` in place of
    compute. At most `most_loads` loads search for links that nodes share, before any group is looked at closely; 0
    searches for none.
    """

    __pydantic_config__ = STRICT

    stream_seconds: float = 0.2
    settle_seconds: float = 0.05
    num_windows: int = 6
    num_rounds: int = 2
    num_trips: int = 6
    num_batches: int = 4
    num_computations: int = 8
    curve_bytes: tuple[int, ...] = tuple(4096 * 4**power for power in range(7))
    point_seconds: float = 0.4
    most_point_seconds: float = 4.0
    num_steps: int = 25
    pause_seconds: float = 0.02
    most_loads: int = 100
    timeout_seconds: float = 120.0


def of_links_alone(num_nodes: int) -> ProbeSettings:
    """Return the settings with which a probe measures the rates of links, and nothing else that takes long."""
    return ProbeSettings(
        num_trips=1,
        num_batches=1,
        num_computations=1,
        curve_bytes=(),
        num_steps=0,
        most_loads=0,
        timeout_seconds=60.0 + SECONDS_A_NODE * num_nodes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSamples:
    """One flow of a stream, measured by its receiver: the arrival of each chunk, in seconds since the stream began."""

    __pydantic_config__ = STRICT

    kind: StreamKind
    subject: str
    round: int
    source: int
    destination: int
    chunk_bytes: int
    arrival_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TripSamples:
    """Round trips for one direction of a node's link: `num_bytes` there, the smallest message back, then a pause."""

    __pydantic_config__ = STRICT

    kind: Literal["out", "in"]
    subject: str
    source: int
    destination: int
    num_bytes: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSamples:
    """Batches of small messages sent at once: the seconds until the last arrived, and the sender's processor time."""

    __pydantic_config__ = STRICT

    subject: str
    num_messages: int
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSamples:
    """The times of a repeated collective among all workers, measured by this rank."""

    __pydantic_config__ = STRICT

    algorithm: str
    num_bytes: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """Nodes that send to other nodes at the same time.

    The loads `screen` and `again` look at all nodes. The loads `alone` and `together` look closely at a group, whose
    nodes send (`is_out`) or receive: nodes one after another, then all at once, in several rounds.
    """

    __pydantic_config__ = STRICT

    purpose: LoadPurpose
    ways: Ways
    group: tuple[int, ...] = ()
    is_out: bool = True
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSamples:
    """A measured load: bytes per second on each of its ways, and the largest share of processor time on a node."""

    __pydantic_config__ = STRICT

    load: HostLoad
    rates: tuple[float, ...]
    cpu_share: float

    @property
    def rate(self) -> float:
        """The bytes per second of all ways together."""
        return sum(self.rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface: its bytes during the streams between nodes, and its speed, or None if that is unknown."""

    __pydantic_config__ = STRICT

    name: str
    num_bytes: int
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnswer:
    """All measurements of one rank. Each sample is in the answer of the rank whose clock timed it.

    `loads` are the same on all ranks, so only the first rank answers with them. `pass_seconds` is the time of a model's
    passes, if the probe was given a model.
    """

    __pydantic_config__ = STRICT

    rank: int
    flows: tuple[FlowSamples, ...] = ()
    trips: tuple[TripSamples, ...] = ()
    batches: tuple[BatchSamples, ...] = ()
    collectives: tuple[CollectiveSamples, ...] = ()
    compute_seconds: tuple[float, ...] = ()
    step_seconds: tuple[float, ...] = ()
    pass_seconds: float | None = None
    interfaces: tuple[Interface, ...] = ()
    loads: tuple[LoadSamples, ...] = ()
    chosen_interface: str | None = None
    cpu_share: float = 0.0
    torch: str = ""
