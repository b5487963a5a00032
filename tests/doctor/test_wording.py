"""The messages for users, and the fields for programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autosync.doctor.causes import CAUSES
from autosync.doctor.diagnosis import diagnose
from autosync.doctor.evidence import WatchedVariable
from autosync.doctor.gain import Gain, gain_of_script
from autosync.doctor.wording import Operands, describe, fields
from autosync.specs.cluster import ClusterSpec, Node

SCRIPT = Operands(cluster="my cluster.yaml", script=("train.py", "--name", "a b"))
MODEL = Operands(cluster="c", model="model.py")

SLOW_RANK = """\
slow rank (rank 1 on n1): 56% of the step
  rank 1 on n1 works 200 ms longer than the others, most of it in the backward pass; 100% of the
    messages were ready last there

A step of stock DDP takes 356.5 ms (median of 5 steps).
Better synchronisation makes it at most 1.03 times as fast: no exact strategy can take less than 350
ms (the slowest rank's own work).
Next: see what differs on its node: processors, other programs, its data; then look again
  autosync cluster check 'my cluster.yaml'

also           of the step  evidence
compute-bound          43%  forward 50 ms, backward 100 ms, update 5 ms

Below 1% of the step: exposed communication, slow input, other programs, bucket sizes,
find_unused_parameters, buffer broadcasts, accumulation.

Not known:
  slow link: transfers cost too little
  slow uplink: transfers cost too little
  wrong interface: transfers cost too little"""


def test_a_slow_rank_in_words(work: Any, ranks: Any) -> None:
    evidence = ranks(works=[work(), work(backward=0.3)], rate=1e11).evidence(doubt="transfers cost too little")
    found = diagnose(evidence, gain=Gain(step_seconds=0.36, bound_seconds=0.35, because="the slowest rank's own work"))
    assert describe(found, SCRIPT) == SLOW_RANK


def test_the_next_command_names_what_the_user_has_typed(work: Any, ranks: Any) -> None:
    found = diagnose(ranks(works=[work()] * 2, rate=3e7).evidence())
    assert "autosync tune model.py --cluster c -o best.yaml" in describe(found, MODEL)
    assert "docs/task.md" not in describe(found, MODEL)
    assert "autosync tune --cluster 'my cluster.yaml' -o best.yaml -- train.py --name 'a b'" in describe(found, SCRIPT)
    assert "docs/task.md" not in describe(found, SCRIPT)
    # Buckets of stock DDP are tuned for tasks alone.
    assert SCRIPT.needs_task(CAUSES["bucket_sizes"].command)
    assert SCRIPT.again == "autosync doctor --cluster 'my cluster.yaml' -- train.py --name 'a b'"


def test_a_model_spec_is_no_task() -> None:
    spec = Operands(cluster="c", model="resnet50", options=("--steps", "5"))
    compute = CAUSES["compute"].command
    assert spec.fill(compute) == SCRIPT.fill(compute) == "autosync profile model.py"
    assert MODEL.fill(compute) == "autosync profile model.py"
    assert [one.needs_task(compute) for one in (spec, SCRIPT, MODEL)] == [True, True, False]
    assert not spec.needs_task(CAUSES["bucket_sizes"].command)
    assert spec.again == "autosync doctor resnet50 --cluster c --steps 5"


@pytest.mark.parametrize("name", sorted(CAUSES))
def test_every_command_can_be_filled_in(name: str) -> None:
    for operands in (SCRIPT, MODEL):
        assert operands.fill(CAUSES[name].command).startswith("autosync ")
    assert set(CAUSES[name].explains) <= CAUSES.keys()


def test_a_gain_that_is_none_is_said_so(work: Any, ranks: Any) -> None:
    found = diagnose(ranks(works=[work()]).evidence())
    none = replace(found, gain=Gain(step_seconds=1, bound_seconds=1, because="forward and backward"))
    assert "Better synchronisation gives nothing here" in describe(none, MODEL)
    assert "is not known" in describe(found, MODEL)
    assert fields(found, MODEL)["most_speedup"] is None


def test_a_step_that_is_shorter_than_the_bound_refutes_it(work: Any, ranks: Any) -> None:
    found = diagnose(ranks(works=[work()]).evidence())
    refuted = replace(found, gain=Gain(step_seconds=0.9, bound_seconds=1, because="forward and backward"))
    assert "This step is shorter than the links' rates and the profile allow" in describe(refuted, MODEL)
    assert fields(refuted, MODEL)["most_speedup"] is None


def test_the_document_has_every_cause_once(work: Any, ranks: Any) -> None:
    document = fields(diagnose(ranks(works=[work()] * 2).evidence()), MODEL)
    named = [document["primary"], *document["others"], *document["unknown"]]
    assert sorted(one["cause"] for one in named) == sorted(CAUSES)
    assert document["next"]["command"].startswith("autosync")


def test_the_gain_of_a_script_keeps_the_slowest_ranks_work(work: Any, ranks: Any) -> None:
    nodes = tuple(Node(name=f"n{i}", host=f"h{i}", bandwidth_out=1e9, bandwidth_in=1e9) for i in range(2))
    cluster = ClusterSpec(name="c", nodes=nodes, launcher="testbed")
    evidence = ranks(works=[work(), work(backward=0.3)], rate=1e8).evidence()
    gain = gain_of_script(evidence, cluster)
    assert gain.bound_seconds == pytest.approx(0.351)
    assert gain.because == "the slowest rank's own work"
    assert gain.most > 1


@pytest.mark.parametrize(
    ("least_bytes", "num_passes", "bound"),
    # Without accumulation factors of three other ranks come in; of an embedding few rows may.
    [(10**7, 1, 1.0), (10**6, 1, 0.3), (10**6, 2, 1.0), (0, 1, None), (0, 2, None)],
)
def test_the_gain_of_a_script_knows_the_slower_direction_of_a_link(
    work: Any, ranks: Any, least_bytes: int, num_passes: int, bound: float | None
) -> None:
    nodes = (
        Node(name="n0", host="h0", bandwidth_out=1e9, bandwidth_in=1e7),
        Node(name="n1", host="h1", bandwidth_out=1e9, bandwidth_in=1e9, devices=3),
    )
    cluster = ClusterSpec(name="c", nodes=nodes, launcher="testbed")
    evidence = ranks(works=[work(forward=0.01, backward=0.01)] * 4, num_passes=num_passes).evidence()
    variables = (WatchedVariable(name="w", num_bytes=10**7, least_bytes=least_bytes),)
    first = replace(evidence.ranks[0], variables=variables)
    gain = gain_of_script(replace(evidence, ranks=(first, *evidence.ranks[1:])), cluster)
    if bound is None:
        assert gain.because == "the slowest rank's own work"
    else:
        assert (gain.bound_seconds, gain.because) == (pytest.approx(bound), "what must pass the slowest link")
