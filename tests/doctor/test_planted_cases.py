"""The benchmark's cases can be told apart: ranks and links as they are planted, without noise, are diagnosed right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from autosync.doctor.diagnosis import diagnose
from autosync.doctor.evidence import Evidence, InterfaceTraffic, Processors, WatchedSettings
from autosync.doctor.links import link_rates
from autosync.specs.cluster import ClusterSpec
from benchmarks.doctor_cases.cases import KINDS, MIB, NUM_HEALTHY, NUM_PLANTED, Case, Planted, Training, all_cases
from benchmarks.doctor_cases.doctor_cases import is_right, summary_of
from benchmarks.doctor_cases.networks import SIDE_INTERFACE, SideNetwork, SideRoute, SlowPort
from tests.helpers.probed_clusters import probed

LATENCY = 0.0015
SEARCH_SECONDS = 2e-6
"""The time to look at one number of a model's output for a tensor."""
KEPT = 0.97
"""The share of a link's rate that a probe measures."""


def _message_bytes(training: Training) -> list[int]:
    """Return the sizes of DDP's buckets."""
    layer = max(int(training.mebibytes * MIB / 4 / training.layers), 1) * 4
    cap = training.bucket_mebibytes
    caps = [MIB, 25 * MIB] if cap is None else [int(cap * MIB)]
    sizes, size = [], 0
    for _ in range(training.layers):
        size += layer
        if size >= caps[min(len(sizes), len(caps) - 1)]:
            sizes.append(size)
            size = 0
    return [*sizes, size] if size else sizes


def _works(planted: Planted, work: Any) -> list[Any]:
    training = planted.training
    # Two programs share each processor if others use them as well.
    factor = 2 if planted.num_others else 1
    usual = work(
        input=training.input_seconds + 0.001,
        forward=factor * training.forward_seconds,
        backward=factor * training.backward_seconds,
        search=training.output_numbers * SEARCH_SECONDS if training.find_unused_parameters else 0.0,
    )
    works = [usual] * len(planted.cluster.nodes)
    if training.slow_rank is not None:
        phase = str(training.slow_phase)
        slow = replace(usual, **{phase: getattr(usual, phase) + training.slow_seconds})
        works[training.slow_rank] = slow
    return works


def _rates(planted: Planted) -> tuple[dict[str, float], dict[str, float]]:
    """Return the true rates of nodes and of uplinks."""
    nodes = {node.name: node.bandwidth_out for node in planted.cluster.nodes}
    uplinks = {rack.name: rack.uplink_out for rack in planted.cluster.racks}
    fault = planted.fault
    if isinstance(fault, SlowPort):
        (nodes if fault.kind == "node" else uplinks)[fault.name] = fault.rate
    elif isinstance(fault, SideRoute):
        nodes[fault.node] = fault.rate
    return nodes, uplinks


def _probed(cluster: ClusterSpec, nodes: Mapping[str, float], uplinks: Mapping[str, float]) -> ClusterSpec:
    inside = {rack: sum(nodes[one.name] for one in cluster.nodes if one.rack == rack) for rack in uplinks}
    ways = {rack: min(rate, inside[rack]) for rack, rate in uplinks.items()}
    ways = {rack: min(rate, sum(ways.values()) - rate) for rack, rate in ways.items()}
    kept_nodes, kept_ways = ({name: KEPT * rate for name, rate in rates.items()} for rates in (nodes, ways))
    return probed(cluster, kept_nodes, kept_ways)


def _evidence(planted: Planted, work: Any, ranks: Any) -> Evidence:
    training, fault, num = planted.training, planted.fault, len(planted.cluster.nodes)
    nodes, uplinks = _rates(planted)
    slowest = fault.rate if isinstance(fault, SideNetwork) else min([*nodes.values(), *uplinks.values()])
    busy = {"others": 0.6 + 0.2 * (num - 1), "waited_seconds": 0.45}
    calm = {"others": 0.1 * (num - 1), "waited_seconds": 0.0}
    use = Processors(machine="one", seconds=1, **({"own": 0.2, **busy} if planted.num_others else {"own": 0.1, **calm}))
    found = ranks(
        works=_works(planted, work),
        message_bytes=_message_bytes(training),
        rate=slowest * num / (2 * (num - 1)),
        latency=LATENCY,
        num_passes=training.microsteps if training.synchronises_all else 1,
        buffers=training.buffer_mebibytes * MIB / slowest,
        telling=LATENCY if training.find_unused_parameters else 0.0,
        settings=WatchedSettings(
            find_unused_parameters=training.find_unused_parameters,
            buffer_bytes=int(training.buffer_mebibytes * MIB),
        ),
        processors=dict.fromkeys(range(num), use),
    ).evidence(links=link_rates(_probed(planted.cluster, nodes, uplinks)))
    astray = InterfaceTraffic(used=SIDE_INTERFACE, used_bytes=2**40, chosen="eth0", chosen_bytes=1000)
    is_astray = [
        isinstance(fault, SideNetwork) or (isinstance(fault, SideRoute) and fault.node == node) for node in found.nodes
    ]
    told = [replace(one, traffic=astray) if away else one for one, away in zip(found.ranks, is_astray, strict=True)]
    return replace(found, ranks=tuple(told))


@pytest.mark.parametrize("kind", KINDS)
def test_each_planted_cause_is_found_without_noise(work: Any, ranks: Any, kind: str) -> None:
    wrong = {}
    for case in all_cases(0):
        if case.kind == kind:
            planted = case.draw()
            primary = diagnose(_evidence(planted, work, ranks)).primary
            finding = primary.finding
            found = {"cause": primary.name, "subject": finding.subject, "evidence": finding.told}
            if not is_right(case, planted, {"primary": found}):
                wrong[case.name] = found
    assert not wrong


def test_cases_are_drawn_from_their_seed_and_spread_over_the_kinds() -> None:
    cases = all_cases(3)
    assert len(cases) == NUM_PLANTED + NUM_HEALTHY
    assert len({case.name for case in cases}) == len(cases)
    assert {case.kind for case in cases[:14]} == set(KINDS)
    assert [case.draw().training for case in cases] == [case.draw().training for case in all_cases(3)]
    assert cases[0].draw().training != all_cases(4)[0].draw().training


def test_targets_follow_from_results() -> None:
    right = {"kind": "slow_link", "is_right": True, "seconds": 50.0, "busy_share": 0.0}
    alarm = {"kind": "healthy", "is_right": False, "seconds": 61.0, "busy_share": 0.5}
    found = summary_of([right] * 19 + [{**right, "is_right": False}], [])
    # No training was healthy, and nothing was tuned.
    assert found["holds"] == {"right": True, "seconds": True}
    found = summary_of([right, alarm, {**right, "is_right": False}], [{"exceeded_by": 0.04}])
    assert found["holds"] == {"right": False, "no_alarms": False, "seconds": False, "gains": False}
    assert found["right_by_kind"] == {"slow_link": "1 of 2", "healthy": "0 of 1"}
    assert found["num_on_busy_machine"] == 1
    assert summary_of([], [])["holds"] == {}


def test_a_place_and_a_phase_belong_to_the_right_answer() -> None:
    case = next(one for one in all_cases(0) if one.kind == "slow_rank")
    planted = case.draw()
    primary = {"cause": "slow_rank", "subject": planted.subject, "evidence": f"works longer {planted.words}"}
    assert is_right(case, planted, {"primary": primary})
    assert not is_right(case, planted, {"primary": {**primary, "subject": "rank 9 on n9"}})
    assert not is_right(case, planted, {"primary": {**primary, "evidence": "works longer"}})
    assert not is_right(Case(name="x", kind="slow_link", seed="0"), planted, {"primary": primary})
    assert not is_right(case, planted, {"failure": "too late"})
