"""The terms of bounds: each is a time that a step cannot beat, with its cause. And the rates on which they rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autosync.specs.calibration import NodeCalibration, RackCalibration
from autosync.specs.cluster import ClusterSpec, Rack
from autosync.specs.link_calibration import link_calibration
from autosync.units import format_size, format_time

TermKind = Literal[
    "compute",
    "input",
    "loader",
    "node_out",
    "node_in",
    "total",
    "both_ways",
    "rack_out",
    "rack_in",
    "rack_total",
    "rack_both_ways",
    "use_to_use",
    "window",
    "divided_compute",
    "divided_node_out",
    "divided_node_in",
    "divided_rack_out",
    "divided_rack_in",
]
Pair = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Bytes per second out of and into nodes and racks, by name; they replace those of the cluster spec."""

    nodes: Mapping[str, Pair] = field(default_factory=dict)
    racks: Mapping[str, Pair] = field(default_factory=dict)


def rates_of(cluster: ClusterSpec) -> Rates:
    """Return the measured rates of a cluster, at the upper ends of their intervals; none if it was not probed.

    A direction that was not measured has the rate of the cluster spec. So has one that another backend measured to be
    slower (see `specs.link_calibration`).
    """
    calibration = link_calibration(cluster)
    if calibration is None:
        return Rates()
    nodes = {node.name: (node.bandwidth_out, node.bandwidth_in) for node in cluster.nodes}
    racks = {rack.name: (rack.uplink_out, rack.uplink_in) for rack in cluster.racks}
    return Rates(
        nodes={one.name: _upper_ends(one, nodes[one.name]) for one in calibration.nodes},
        racks={one.name: _upper_ends(one, racks[one.name]) for one in calibration.racks},
    )


def _upper_ends(measured: NodeCalibration | RackCalibration, claimed: Pair) -> Pair:
    out, into = measured.rate_out, measured.rate_in
    return claimed[0] if out is None else out.high, claimed[1] if into is None else into.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One lower bound on the seconds of a step. `subject` names the node, rack or variable that causes it."""

    kind: TermKind
    subject: str
    num_bytes: float
    seconds: float

    def __str__(self) -> str:
        return f"{format_time(self.seconds)}: {self.cause}"

    @property
    def cause(self) -> str:
        """The cause in words."""
        about = f" of {self.subject}" if self.subject else ""
        size = f" ({format_size(self.num_bytes)})" if self.num_bytes else ""
        return f"{_WORDS[self.kind]}{about}{size}"


_WORDS: Mapping[TermKind, str] = {
    "compute": "forward and backward",
    "input": "waiting for the loader's batch, forward and backward",
    "loader": "in which loaders make a batch",
    "node_out": "what must leave the interface",
    "node_in": "what must enter the interface",
    "total": "what must pass all interfaces together",
    "both_ways": "what must leave and enter all interfaces together",
    "rack_out": "what must leave the uplink",
    "rack_in": "what must enter the uplink",
    "rack_total": "what must pass all uplinks together",
    "rack_both_ways": "what must leave and enter all uplinks together",
    "use_to_use": "from use to next use",
    "window": "from the gradients to the next uses",
    "divided_compute": "forward and backward of the whole batch on all devices",
    "divided_node_out": "activations or gradients that must leave the interface",
    "divided_node_in": "activations or gradients that must enter the interface",
    "divided_rack_out": "activations or gradients that must leave the uplink",
    "divided_rack_in": "activations or gradients that must enter the uplink",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The terms of a bound, in the order of their kinds. If several are equally large, the first counts."""

    terms: tuple[Term, ...]

    @property
    def largest(self) -> Term:
        return max(self.terms, key=lambda term: term.seconds)

    @property
    def seconds(self) -> float:
        return self.largest.seconds


REFUTED = 0.97
"""The share of a bound below which a step shows that the bound is wrong: noise alone does not bring it there."""

TOO_SHORT = (
    "shorter than the links' rates and the profile allow, so how much is left is not known (autosync cluster probe "
    "measures the rates)"
)
"""What is said of such a step."""


def holds(bound_seconds: float, step_seconds: float) -> bool:
    """Return whether a measured step may have this bound.

    A shorter step shows that the links' rates or the times of the profile are not those of the cluster.
    """
    return step_seconds >= REFUTED * bound_seconds


def pair_of_node(cluster: ClusterSpec, index: int, rates: Rates) -> Pair:
    """Return the rates out of and into a node."""
    node = cluster.nodes[index]
    return rates.nodes.get(node.name, (node.bandwidth_out, node.bandwidth_in))


def pair_of_rack(rack: Rack, rates: Rates) -> Pair:
    """Return the rates of a rack's uplink."""
    return rates.racks.get(rack.name, (rack.uplink_out, rack.uplink_in))
