"""Checks that the other simulators still predict as they did when a prior was trained.

A prior corrects the other simulators. If one of them has improved since, the prior corrects errors that no longer
exist. So a saved prior has the predictions and features of two small made-up cases. When the prior is opened, they are
computed again and compared. One case is a cluster of separate hosts. The other is emulated, with racks and several
ranks a node, like the clusters of most records.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autosync.errors import InputError
from autosync.simulators.features.reader import StrategyReader
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.cost_profiles import cost_profile
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.strategy.presets import build_preset

_PRESETS = ("ddp", "all_reduce_per_variable", "ps", "sharded")
_TOLERANCE = 1e-3


@functools.cache
def rehearsed() -> tuple[float, ...]:
    """Return the figures of the cases: the other simulators' predictions for each strategy, and sums of features."""
    costs = cost_profile("gloo-cpu").costs
    return (*_read(_cluster(), costs), *_read(_emulated(), replace(costs, num_processors=2)))


def _read(cluster: ClusterSpec, costs: Costs) -> tuple[float, ...]:
    model = _model()
    reader = StrategyReader(model, cluster, costs=costs)
    read = reader.read([build_preset(name, model, cluster) for name in _PRESETS])
    values = reader.features(read).values
    # Later columns weigh more, so that exchanged columns are noticed.
    mixed = values @ np.linspace(1.0, 2.0, values.shape[1])
    found = np.concatenate((read.timeline_seconds, read.analytical_seconds, mixed))
    return tuple([float(f"{number:.6g}") for number in found.tolist()])


def check_rehearsal(told: Sequence[float]) -> None:
    """Refuse a prior that was trained with other figures for the cases."""
    now = rehearsed()
    if len(told) != len(now) or not np.allclose(told, now, rtol=_TOLERANCE, atol=1e-12):
        raise InputError(
            "it was trained when other simulators predicted otherwise",
            rule="what corrects them was trained with those of this version",
            hint="train it again",
        )


def _emulated() -> ClusterSpec:
    nodes = [
        Node(name=f"n{place}", host=f"n{place}", devices=2, bandwidth_out=6e7, bandwidth_in=6e7, rack=f"r{place}")
        for place in range(2)
    ]
    racks = [Rack(name=f"r{place}", uplink_out=1e8, uplink_in=1e8) for place in range(2)]
    return ClusterSpec(name="emulated", nodes=tuple(nodes), racks=tuple(racks), launcher="testbed")


def _model() -> ModelSpec:
    shapes = ((64, 3, 7, 7), (64,), (512, 256), (256, 256), (1000, 256), (1000,))
    count = len(shapes)
    variables = tuple(
        [
            Variable(name=f"v{position}", shape=shape, use=position, ready=count - 1 - position)
            for position, shape in enumerate(shapes)
        ]
    )
    forward = tuple([Segment(module=one.name, seconds=0.001, variables=(one.name,)) for one in variables])
    backward = tuple([Segment(module=one.name, seconds=0.002, variables=(one.name,)) for one in variables[::-1]])
    timeline = Timeline(device="none", source="computed", forward=forward, backward=backward)
    return ModelSpec(name="rehearsal", optimizer=OptimizerSpec(name="SGD"), variables=variables, timeline=timeline)


def _cluster() -> ClusterSpec:
    rates = (1.25e8, 1.25e8, 5e7)
    nodes = [
        Node(name=f"n{position}", host=f"n{position}", bandwidth_out=rate, bandwidth_in=rate)
        for position, rate in enumerate(rates)
    ]
    return ClusterSpec(name="rehearsal", nodes=tuple(nodes))
