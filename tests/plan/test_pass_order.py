"""The order of passes: what it keeps to under each schedule, and how soon it ends."""

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.plan.interleaving import OrderedPass
from autosync.plan.pass_order import TimedPass, order_of_passes, played
from autosync.plan.pass_units import PassUnits
from autosync.strategy.stages import ModelStage, PipelineSchedule, most_under_way


def _straight(num_stages: int) -> list[ModelStage]:
    return [ModelStage(before=number, ranks=(number,)) for number in range(num_stages)]


@given(
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    microbatches=st.integers(4, 12),
    schedule=st.sampled_from(("gpipe", "1f1b", "zero_bubble")),
)
def test_every_pass_comes_once_and_after_what_it_needs(
    widths: list[int], microbatches: int, schedule: PipelineSchedule
) -> None:
    first = [sum(widths[:number]) for number in range(len(widths))]
    stages = [
        ModelStage(before=number, ranks=tuple(range(begin, begin + width)))
        for number, (begin, width) in enumerate(zip(first, widths, strict=True))
    ]
    order = order_of_passes(stages, microbatches, schedule)
    keys = [(one.direction, one.stage, one.microbatch) for one in order]
    directions = ("forward", "backward", "weights")[: 3 if schedule == "zero_bubble" else 2]
    assert len(keys) == len(set(keys)) == len(directions) * microbatches * len(stages)
    place = {key: number for number, key in enumerate(keys)}
    for (direction, stage, microbatch), number in place.items():
        if direction == "forward" and stage:
            assert place["forward", stage - 1, microbatch] < number
        if direction == "backward":
            assert place["forward", stage, microbatch] < number
            assert stage == len(stages) - 1 or place["backward", stage + 1, microbatch] < number
        if direction == "weights":
            assert place["backward", stage, microbatch] < number
    for direction in directions:
        for number, stage in enumerate(stages):
            for rank in stage.ranks:
                mine = [m for d, s, m in keys if (d, s) == (direction, number) and stage.rank_of(m) == rank]
                assert mine == sorted(mine)


def _passes_of(order: list[TimedPass], stage: int) -> str:
    return "".join(f"{one.direction[0]}{one.microbatch}" for one in order if one.stage == stage)


def test_one_forward_and_one_backward_in_turn() -> None:
    order = order_of_passes(_straight(3), 5, "1f1b")
    first = _passes_of(order, 0)
    last = _passes_of(order, 2)
    assert first == "f0f1f2b0f3b1f4b2b3b4"
    assert last == "f0b0f1b1f2b2f3b3f4b4"


def test_gpipe_makes_all_forward_passes_first() -> None:
    order = order_of_passes(_straight(2), 3, "gpipe")
    assert _passes_of(order, 0) == "f0f1f2b0b1b2"


@given(num_stages=st.integers(1, 6), microbatches=st.integers(1, 20), slack=st.integers(0, 3))
def test_under_1f1b_a_rank_keeps_no_more_microbatches_than_stages_follow(
    num_stages: int, microbatches: int, slack: int
) -> None:
    order = order_of_passes(_straight(num_stages), microbatches, "1f1b", slack)
    kept: Counter[int] = Counter()
    for one in order:
        kept[one.stage] += 1 if one.direction == "forward" else -1
        assert kept[one.stage] <= num_stages - one.stage + slack


@given(num_stages=st.integers(1, 5), microbatches=st.integers(1, 16), schedule=st.sampled_from(("gpipe", "1f1b")))
def test_even_stages_wait_only_at_both_ends(num_stages: int, microbatches: int, schedule: PipelineSchedule) -> None:
    last = max(one.begin for one in order_of_passes(_straight(num_stages), microbatches, schedule))
    # Three units a microbatch, and a bubble of three units for each further stage.
    assert last + 2 == 3 * (microbatches + num_stages - 1)


@given(num_stages=st.integers(1, 5), microbatches=st.integers(1, 16))
def test_a_backward_pass_that_computes_activations_again_takes_longer(num_stages: int, microbatches: int) -> None:
    order = order_of_passes(_straight(num_stages), microbatches, "1f1b", recompute=True)
    assert max(one.begin for one in order) + 3 == 4 * (microbatches + num_stages - 1)


@given(num_ranks=st.integers(2, 5), per_rank=st.integers(2, 3), groups=st.integers(1, 4), slack=st.integers(0, 6))
def test_interleaved_stages_wait_for_one_short_stage_a_rank(
    num_ranks: int, per_rank: int, groups: int, slack: int
) -> None:
    stages = [ModelStage(before=n, ranks=(n % num_ranks,)) for n in range(num_ranks * per_rank)]
    order = order_of_passes(stages, groups * num_ranks, "interleaved", slack)
    keys = [(one.direction, one.stage, one.microbatch) for one in order]
    assert len(keys) == len(set(keys)) == 2 * len(stages) * groups * num_ranks
    end = max(one.begin + (1 if one.direction == "forward" else 2) for one in order)
    # The bubble has three units of a short stage for each further rank.
    assert end == 3 * (per_rank * groups * num_ranks + num_ranks - 1)
    kept: Counter[int] = Counter()
    for one in order:
        rank = one.stage % num_ranks
        kept[rank] += 1 if one.direction == "forward" else -1
        assert kept[rank] <= 2 * (num_ranks - rank - 1) + (per_rank - 1) * num_ranks + slack + 1


@given(num_stages=st.integers(2, 6), microbatches=st.integers(1, 20), slack=st.integers(0, 3))
def test_gradients_of_weights_fill_bubbles_in_the_memory_of_a_first_stage(
    num_stages: int, microbatches: int, slack: int
) -> None:
    order = order_of_passes(_straight(num_stages), microbatches, "zero_bubble", slack)
    kept: Counter[int] = Counter()
    for one in order:
        kept[one.stage] += {"forward": 1, "backward": 0, "weights": -1}[one.direction]
        assert kept[one.stage] <= num_stages + slack
    # With one unit for each of three passes, the bubble is a third of what it is under 1f1b.
    end = max(one.begin for one in order) + 1
    if microbatches >= num_stages:
        assert end == 3 * microbatches + num_stages - 1
    # No rank waits while it has gradients of weights to compute.
    for stage in range(num_stages):
        mine = [one for one in order if one.stage == stage]
        for before, after in itertools.pairwise(mine):
            left = sum(one.direction == "backward" for one in mine[: mine.index(after)])
            done = sum(one.direction == "weights" for one in mine[: mine.index(after)])
            assert left == done or after.begin == before.begin + 1


def test_a_split_backward_pass_sends_first() -> None:
    order = order_of_passes(_straight(3), 4, "zero_bubble")
    last = _passes_of(order, 2)
    first = _passes_of(order, 0)
    assert first == "f0f1f2b0w0f3b1w1b2w2b3w3"
    assert last == "f0b0f1b1f2b2w0f3b3w1w2w3"


def test_interleaved_passes_go_in_groups() -> None:
    stages = [ModelStage(before=n, ranks=(n % 2,)) for n in range(4)]
    order = order_of_passes(stages, 4, "interleaved")
    last = " ".join(f"{one.direction[0]}{one.stage}:{one.microbatch}" for one in order if one.stage % 2 == 1)
    assert last == ("f1:0 f1:1 f3:0 b3:0 f3:1 b3:1 f1:2 b1:0 f1:3 b1:1 f3:2 b3:2 f3:3 b3:3 b1:2 b1:3")


def _around(units: Sequence[tuple[int, int, int]], *, width: int = 1) -> list[ModelStage]:
    """Stages of so many ranks and these units; the ranks of the first one have the last one too."""
    ranks = [tuple(range(number * width, (number + 1) * width)) for number in range(len(units) - 1)]
    ranks.append(ranks[0])
    return [
        ModelStage(before=number, ranks=of_stage, units=times)
        for number, (of_stage, times) in enumerate(zip(ranks, units, strict=True))
    ]


def _end(order: Sequence[TimedPass], units: PassUnits) -> int:
    return max(one.begin + units.of(one[1:]) for one in order)


def test_a_rank_with_the_first_and_the_last_stage_keeps_the_others_at_work() -> None:
    """Each rank computes 480 units, and the first stage nearly nothing. The first microbatch takes 120 beside."""
    stages = _around([(1, 1, 0), (20, 40, 20), (20, 40, 20), (20, 40, 20)])
    ends = {}
    for schedule in ("1f1b", "gpipe"):
        units = PassUnits(stages, 8, schedule, 0, recompute=False, send_units=0)
        ends[schedule] = _end(order_of_passes(stages, 8, schedule), units)
        by_late_stages = played(units).end
        if schedule == "1f1b":
            assert by_late_stages > 700
    assert ends["gpipe"] <= 620
    assert ends["1f1b"] <= ends["gpipe"] + 20


@given(seed=st.integers(0, 2**32), schedule=st.sampled_from(("gpipe", "1f1b", "zero_bubble")))
@settings(deadline=None)
def test_ranks_with_several_stages_end_no_later_than_by_late_stages(seed: int, schedule: PipelineSchedule) -> None:
    rng = random.Random(seed)
    pairs = [sorted(rng.choices(range(20), k=2), reverse=True) for _ in range(rng.randint(3, 6))]
    stages = _around([(rng.randrange(20), *pair) for pair in pairs], width=rng.randint(1, 2))
    microbatches, slack, send_units = rng.randint(2, 16), rng.choice((0, 0, 2)), rng.choice((0, 3))
    units = PassUnits(stages, microbatches, schedule, slack, recompute=False, send_units=send_units)
    order = order_of_passes(stages, microbatches, schedule, slack, send_units=send_units)
    assert _end(order, units) <= played(units).end
    assert len({one[1:] for one in order}) == len(order) == len(played(units).passes)
    by_paths = played(units, units.longest_paths())
    for one in (order, by_paths.passes):
        _check_room(one, stages, slack if schedule != "gpipe" else microbatches)
        _check_waits(one, units)


def _check_room(order: Sequence[TimedPass], stages: Sequence[ModelStage], slack: int) -> None:
    """No rank has more microbatches of a stage under way than this stage and those behind it can work on."""
    kept: Counter[tuple[int, int]] = Counter()
    for one in order:
        if one.direction != "weights":
            key = one.stage, stages[one.stage].rank_of(one.microbatch)
            kept[key] += 1 if one.direction == "forward" else -1
            assert kept[key] <= most_under_way(stages, one.stage, slack)


def _check_waits(order: Sequence[TimedPass], units: PassUnits) -> None:
    """Each pass comes after what it needs has come, and no rank makes two passes at once."""
    begins: Mapping[OrderedPass, int] = {(one.direction, one.stage, one.microbatch): one.begin for one in order}
    for key, begin in begins.items():
        needing = units.next_of(key)
        assert needing is None or begins[needing] >= begin + units.of(key) + units.sending(key)
    free: Counter[int] = Counter()
    for one in order:
        rank = units.stages[one.stage].rank_of(one.microbatch)
        assert one.begin >= free[rank]
        free[rank] = one.begin + units.of((one.direction, one.stage, one.microbatch))
