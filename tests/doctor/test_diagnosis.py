"""Planted causes of random size are found with their place, and healthy ranks give no alarm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.doctor.causes import CAUSES
from autosync.doctor.diagnosis import LEAST_SHARE, diagnose
from autosync.doctor.evidence import Evidence, InterfaceTraffic, LinkRate, Processors, WatchedSettings
from autosync.doctor.timing import PHASES, timing_of

MIB = 2**20
num_ranks = st.integers(2, 6)
scale = st.floats(0.1, 10)
clock = st.floats(-1e4, 1e4)


def _links(num: int, *, slow: int | None = None, rate: float = 1e9) -> tuple[LinkRate, ...]:
    return tuple(
        LinkRate(
            kind="node",
            subject=f"n{number}",
            direction="out",
            rate=rate if number == slow else 1e9,
            expected=1e9,
            is_measured=True,
            compared="its file says",
        )
        for number in range(num)
    )


@given(num=num_ranks, size=scale, data=st.data())
def test_healthy_ranks_give_no_alarm(work: Any, ranks: Any, num: int, size: float, data: st.DataObject) -> None:
    noise = st.floats(0.98, 1.02)
    works = [
        work(forward=0.05 * size * data.draw(noise), backward=0.1 * size * data.draw(noise), update=0.005 * size)
        for _ in range(num)
    ]
    clocks = [data.draw(clock) for _ in range(num)]
    trained = ranks(works=works, clocks=clocks, rate=1e12, latency=1e-6)
    found = diagnose(trained.evidence(links=_links(num), is_probed=True))
    assert found.primary.name == "compute"
    assert found.primary.share > 0.85
    assert found.unknown == {}


@given(num=num_ranks, size=scale, data=st.data())
def test_a_slow_rank_is_found_with_its_phase(work: Any, ranks: Any, num: int, size: float, data: st.DataObject) -> None:
    extra = data.draw(st.floats(0.3, 5))
    rank, phase = data.draw(st.integers(0, num - 1)), data.draw(st.sampled_from(PHASES[:3]))
    usual = work(forward=0.05 * size, backward=0.1 * size, update=0.01 * size)
    slow = replace(usual, **{phase: getattr(usual, phase) + 0.16 * size * extra})
    works = [slow if number == rank else usual for number in range(num)]
    clocks = [data.draw(clock) for _ in range(num)]
    found = diagnose(ranks(works=works, clocks=clocks, rate=1e11).evidence(links=_links(num)))
    assert found.primary.name == "slow_rank"
    assert found.primary.finding.subject == f"rank {rank} on n{rank}"
    words = {"input": "between its passes", "forward": "forward pass", "backward": "backward pass"}
    assert words[phase] in found.primary.finding.told
    step = timing_of(ranks(works=works, clocks=clocks, rate=1e11).evidence()).step_seconds
    healthy = timing_of(ranks(works=[usual] * num, rate=1e11).evidence()).step_seconds
    assert found.primary.finding.seconds == pytest.approx(step - healthy, rel=0.1, abs=0.002)


@pytest.mark.parametrize(
    ("nodes", "num_usual", "subject"),
    [
        ("aabb", 2, "b"),
        ("abbb", 1, "b"),
        ("aaaa", 2, "rank 2 on a, rank 3 on a"),
        ("abcd", 2, "rank 2 on c, rank 3 on d"),
        ("aabb", 3, "rank 3 on b"),
    ],
)
def test_ranks_that_are_late_together_are_found(
    work: Any, ranks: Any, nodes: str, num_usual: int, subject: str
) -> None:
    works = [work()] * num_usual + [work(forward=0.25)] * (4 - num_usual)
    found = diagnose(ranks(works=works, rate=1e11).evidence(nodes=tuple(nodes), links=_links(4)))
    assert (found.primary.name, found.primary.finding.subject) == ("slow_rank", subject)
    assert found.primary.finding.seconds == pytest.approx(0.2, abs=0.005)
    assert f"{subject} work" in found.primary.finding.told


@given(num=num_ranks, late=st.floats(0.5, 5))
def test_slow_input_of_all_ranks_is_no_slow_rank(work: Any, ranks: Any, num: int, late: float) -> None:
    found = diagnose(ranks(works=[work(input=0.15 * late)] * num, rate=1e11).evidence(links=_links(num)))
    assert found.primary.name == "slow_input"
    assert found.primary.finding.seconds == pytest.approx(0.15 * late, rel=0.01)


@given(num=num_ranks, wait=st.floats(0.2, 1), every=st.integers(2, 6))
def test_input_that_few_steps_wait_for_is_slow_input(work: Any, ranks: Any, num: int, wait: float, every: int) -> None:
    """The workers of a loader are done at the same time, so one step waits, and the next ones find their batches."""
    bursts = dict.fromkeys(range(num), every)
    slow = ranks(works=[work(input=wait, loader=wait)] * num, rate=1e11, num_steps=2 * every, bursts=bursts)
    found = diagnose(slow.evidence(links=_links(num)))
    assert found.primary.name == "slow_input"
    assert found.primary.finding.seconds == pytest.approx(wait, rel=0.01)
    assert found.step_seconds == pytest.approx(timing_of(replace(slow, bursts={}).evidence()).step_seconds)


@given(num=num_ranks, wait=st.floats(0.2, 1), every=st.integers(2, 6))
def test_a_rank_that_waits_for_input_in_few_steps_is_slow(
    work: Any, ranks: Any, num: int, wait: float, every: int
) -> None:
    works = [work(input=wait, loader=wait), *[work()] * (num - 1)]
    slow = ranks(works=works, rate=1e11, num_steps=2 * every, bursts={0: every})
    found = diagnose(slow.evidence(links=_links(num)))
    assert (found.primary.name, found.primary.finding.subject) == ("slow_rank", "rank 0 on n0")
    assert found.primary.finding.seconds == pytest.approx(wait, rel=0.02)
    assert "between its passes" in found.primary.finding.told


def test_the_first_batch_of_an_epoch_is_no_slow_input(work: Any, ranks: Any) -> None:
    begun = ranks(works=[work()] * 2, num_steps=12)
    late = replace(begun, first_batch=20.0)
    found, usual = (diagnose(one.evidence(links=_links(2))) for one in (late, begun))
    assert (found.primary.name, found.primary.share) == (usual.primary.name, pytest.approx(usual.primary.share))
    assert found.step_seconds == pytest.approx(usual.step_seconds)


@pytest.mark.parametrize(("num_workers", "words"), [(0, " (no workers)"), (1, " (1 worker)"), (None, "")])
def test_waiting_for_a_data_loader_is_told(work: Any, ranks: Any, num_workers: int | None, words: str) -> None:
    settings = WatchedSettings(num_workers=num_workers)
    trained = ranks(works=[work(input=0.3, loader=0.25)] * 2, rate=1e11, settings=settings)
    told = diagnose(trained.evidence(links=_links(2))).primary.finding.told
    assert told == (
        f"every rank spends 300 ms of a step outside its passes and the update, 250 ms of it waiting for its "
        f"DataLoader{words}"
    )
    without = diagnose(ranks(works=[work(input=0.3)] * 2, rate=1e11).evidence(links=_links(2)))
    assert "DataLoader" not in without.primary.finding.told


@given(num=num_ranks, rate=st.floats(1e7, 5e7))
def test_exposed_communication_is_what_the_transfers_add(work: Any, ranks: Any, num: int, rate: float) -> None:
    trained = ranks(works=[work()] * num, rate=rate)
    found = diagnose(trained.evidence(links=_links(num)))
    assert found.primary.name == "exposed_communication"
    faster = replace(trained, rate=1e15, latency=0.0)
    saved = timing_of(trained.evidence()).step_seconds - timing_of(faster.evidence()).step_seconds
    assert found.primary.finding.seconds == pytest.approx(saved, rel=0.01)


@given(num=num_ranks, slower=st.floats(1.5, 10), data=st.data())
def test_a_slow_link_takes_the_place_of_exposed_communication(
    work: Any, ranks: Any, num: int, slower: float, data: st.DataObject
) -> None:
    slow = data.draw(st.integers(0, num - 1))
    links = _links(num, slow=slow, rate=1e9 / slower)
    found = diagnose(ranks(works=[work()] * num, rate=3e7).evidence(links=links))
    assert found.primary.name == "slow_link"
    assert found.primary.finding.subject == f"n{slow}"


def test_a_cause_below_the_least_share_explains_one_above_it(work: Any, ranks: Any) -> None:
    links = _links(2, slow=1, rate=5e8)
    found = diagnose(ranks(works=[work()] * 2, message_bytes=[MIB], rate=5.5e7).evidence(links=links))
    judged = {one.name: one.share for one in (found.primary, *found.others)}
    assert judged["exposed_communication"] > LEAST_SHARE > judged["slow_link"]
    assert found.primary.name == "slow_link"


def test_links_that_were_not_measured_are_not_judged(work: Any, ranks: Any) -> None:
    found = diagnose(ranks(works=[work()] * 3, rate=3e7).evidence(doubt="no time"))
    assert found.primary.name == "exposed_communication"
    assert found.unknown["slow_link"] == found.unknown["slow_uplink"] == "no time"


def test_a_slow_link_of_the_cluster_file_is_one_though_not_measured(work: Any, ranks: Any) -> None:
    named = tuple(replace(link, is_measured=False) for link in _links(3, slow=1, rate=2e8))
    found = diagnose(ranks(works=[work()] * 3, rate=3e7).evidence(links=named, doubt="no time"))
    assert found.primary.name == "slow_link"
    assert "by the cluster file" in found.primary.finding.told
    equal = tuple(replace(link, is_measured=False) for link in _links(3))
    found = diagnose(ranks(works=[work()] * 3, rate=3e7).evidence(links=equal, doubt="no time"))
    assert found.unknown["slow_link"] == "no time"


def test_a_link_that_the_others_cannot_fill_is_named(work: Any, ranks: Any) -> None:
    wide, *others = _links(4)
    links = (replace(wide, rate=4e9, expected=4e9, is_measured=False), *others)
    found = diagnose(ranks(works=[work()] * 4, rate=3e7).evidence(links=links, is_probed=True))
    assert found.unknown["slow_link"] == "the others cannot fill the link of n0, so its rate is not known"
    assert "wrong_interface" not in found.unknown


def test_interfaces_are_not_known_from_rates_that_stand_in_the_cluster_file(work: Any, ranks: Any) -> None:
    doubt = "--no-probe was given, so the links were not measured"
    found = diagnose(ranks(works=[work()] * 3, rate=3e7).evidence(links=_links(3), doubt=doubt))
    assert "slow_link" not in found.unknown
    assert found.unknown["wrong_interface"] == doubt


def _with_traffic(evidence: Evidence, **traffic: InterfaceTraffic) -> Evidence:
    ranks = tuple(replace(one, traffic=traffic.get(f"n{one.rank}")) for one in evidence.ranks)
    return replace(evidence, ranks=ranks)


def test_gradients_that_the_script_sends_over_another_interface(work: Any, ranks: Any) -> None:
    evidence = ranks(works=[work()] * 3, rate=3e7).evidence(links=_links(3))
    astray = InterfaceTraffic(used="mgmt0", used_bytes=2**40, chosen="eth0,eth1", chosen_bytes=5000)
    found = diagnose(_with_traffic(evidence, n1=astray, n2=astray))
    assert found.primary.name == "wrong_interface"
    assert found.primary.finding.subject == "n1, n2"
    assert "mgmt0" in found.primary.finding.told


@pytest.mark.parametrize(
    "traffic",
    [
        InterfaceTraffic(used="eth1", used_bytes=2**40, chosen="eth0,eth1", chosen_bytes=2**40),
        # Something else is busier there, and the chosen interface may have carried the gradients.
        InterfaceTraffic(used="disk0", used_bytes=2**41, chosen="eth0", chosen_bytes=2**40),
        # A hook of the script's own may send less than the gradients have.
        InterfaceTraffic(used="disk0", used_bytes=1000, chosen="eth0", chosen_bytes=900),
    ],
)
def test_gradients_on_the_chosen_interface(work: Any, ranks: Any, traffic: InterfaceTraffic) -> None:
    evidence = ranks(works=[work()] * 3, rate=3e7).evidence(links=_links(3))
    assert diagnose(_with_traffic(evidence, n1=traffic)).primary.name == "exposed_communication"


@given(count=st.integers(30, 60), alone=st.floats(0.2, 1))
def test_many_small_buckets_are_found(work: Any, ranks: Any, count: int, alone: float) -> None:
    trained = ranks(works=[work()] * 2, message_bytes=[100_000] * count, latency=0.005, rate=1e9, alone=alone)
    found = diagnose(trained.evidence(links=_links(2)))
    assert found.primary.name == "bucket_sizes"
    assert "bucket_cap_mb" in found.primary.finding.told


def test_one_bucket_for_everything_is_found(work: Any, ranks: Any) -> None:
    trained = ranks(works=[work(backward=1.0)] * 2, message_bytes=[80 * MIB], rate=1e8, gradients_a_message=80)
    found = diagnose(trained.evidence(links=_links(2)))
    assert found.primary.name == "bucket_sizes"


@given(passes=st.integers(2, 8))
def test_accumulation_that_synchronises_every_time_is_found(work: Any, ranks: Any, passes: int) -> None:
    found = diagnose(ranks(works=[work()] * 2, rate=3e7, num_passes=passes).evidence(links=_links(2)))
    assert found.primary.name == "accumulation"
    assert str(passes) in found.primary.finding.told


@given(search=st.floats(0.05, 0.5), telling=st.floats(0, 0.1), is_on=st.booleans())
def test_the_search_for_unused_parameters_is_found(
    work: Any, ranks: Any, search: float, telling: float, is_on: bool
) -> None:
    settings = WatchedSettings(find_unused_parameters=is_on)
    works = [work(search=search if is_on else 0.0)] * 2
    trained = ranks(works=works, telling=telling if is_on else 0.0, rate=1e11, settings=settings)
    found = diagnose(trained.evidence(links=_links(2)))
    assert (found.primary.name == "unused_parameters") == is_on
    if is_on:
        assert found.primary.finding.seconds == pytest.approx(search + telling, rel=0.01)
        assert "every parameter got its gradient" in found.primary.finding.told


@given(buffers=st.floats(0.05, 0.5), late=st.floats(0, 0.02))
def test_broadcasts_of_buffers_are_found(work: Any, ranks: Any, buffers: float, late: float) -> None:
    works = [work(input=0.001 + late), work(), work()]
    trained = ranks(works=works, buffers=buffers, rate=1e11, settings=WatchedSettings(buffer_bytes=100))
    found = diagnose(trained.evidence(links=_links(3)))
    assert found.primary.name == "buffer_broadcasts"
    assert found.primary.finding.seconds == pytest.approx(buffers, rel=0.01)


@given(share=st.floats(0.4, 0.9), waited=st.floats(0.4, 1))
def test_other_programs_take_the_place_of_the_slow_rank_that_they_make(
    work: Any, ranks: Any, share: float, waited: float
) -> None:
    slow = work(backward=0.3)
    busy = Processors(machine="m1", own=0.1, others=share, waited_seconds=waited, seconds=1)
    found = diagnose(ranks(works=[work(), slow], rate=1e11, processors={1: busy}).evidence(links=_links(2)))
    assert found.primary.name == "other_programs"
    assert found.primary.finding.subject == "n1"


def test_other_programs_that_disturb_all_ranks_make_none_of_them_slow(work: Any, ranks: Any) -> None:
    busy = {rank: Processors(machine="m", own=0.1, others=0.9, waited_seconds=0.3, seconds=1) for rank in range(2)}
    found = diagnose(ranks(works=[work(), work(backward=0.4)], rate=1e11, processors=busy).evidence())
    assert found.primary.name == "slow_rank"
    assert found.others[0].name in {"compute", "other_programs"}


def test_ranks_of_one_machine_are_not_other_programs(work: Any, ranks: Any) -> None:
    same = {rank: Processors(machine="one", own=0.25, others=0.76, waited_seconds=0.5, seconds=1) for rank in range(4)}
    found = diagnose(ranks(works=[work()] * 4, rate=1e12, latency=1e-6, processors=same).evidence(links=_links(4)))
    assert found.primary.name == "compute"
    assert all(one.share == 0 for one in found.others if one.name == "other_programs")


def test_missing_meters_make_it_abstain(work: Any, ranks: Any) -> None:
    busy = Processors(machine="m0", own=0.1, others=0.9, waited_seconds=None, seconds=1)
    found = diagnose(ranks(works=[work()] * 2, processors={0: busy}).evidence(links=_links(2)))
    assert "other_programs" in found.unknown
    evidence = ranks(works=[work()] * 2).evidence()
    blind = replace(evidence, ranks=tuple(replace(one, processors=None) for one in evidence.ranks))
    assert "other_programs" in diagnose(blind).unknown


def test_one_rank_is_not_compared(work: Any, ranks: Any) -> None:
    found = diagnose(ranks(works=[work()], rate=1e12).evidence())
    assert "slow_rank" in found.unknown


@given(num=st.integers(1, 4), data=st.data())
def test_every_cause_is_judged_or_unknown_once(work: Any, ranks: Any, num: int, data: st.DataObject) -> None:
    seconds = st.floats(0, 2)
    works = [
        work(**{name: data.draw(seconds) for name in ("input", "forward", "backward", "update", "search")})
        for _ in range(num)
    ]
    trained = ranks(
        works=works, buffers=data.draw(seconds), telling=data.draw(seconds), rate=data.draw(st.floats(1e6, 1e9))
    )
    found = diagnose(trained.evidence())
    names = [found.primary.name, *(one.name for one in found.others), *found.unknown]
    assert sorted(names) == sorted(CAUSES)
    assert all(0 <= one.share <= 1 and one.finding.seconds >= 0 for one in (found.primary, *found.others))
