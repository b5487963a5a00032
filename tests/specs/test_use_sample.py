"""Samples of uses: how likely it is that some rank uses a variable, against counting every case."""

import itertools
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.specs.model_file import format_model, load_model, save_model
from autosync.specs.use_sample import NUM_DRAWN, UseSample, sample_of
from tests.helpers.example_plans import model_of
from tests.helpers.use_samples import random_sample

NAMES = ("a", "b", "c", "d")
SEEDS = st.integers(0, 2**32 - 1)


def _sample(seed: int, **sizes: int) -> UseSample:
    rng = random.Random(seed)
    while (found := random_sample(rng, NAMES, **sizes)) is None:
        pass
    return found


def _cases(sample: UseSample, num_ranks: int) -> Iterator[Sequence[Sequence[str]]]:
    """All equally likely choices of ranks, one list for each sampled step."""
    everyone = [one for step in sample.steps for one in step]
    for step in sample.steps:
        if num_ranks <= sample.num_ranks:
            yield list(itertools.combinations(step, num_ranks))
        else:
            rest = itertools.product(step if sample.is_shared else everyone, repeat=num_ranks - sample.num_ranks)
            yield [(*step, *others) for others in rest]


def _counted(sample: UseSample, names: set[str], num_ranks: int) -> float:
    if names - sample.names:
        return 1.0
    wanted = [place for place, group in enumerate(sample.groups) if names.intersection(group)]
    return statistics.fmean(
        statistics.fmean(any(rank[place] == "1" for rank in ranks for place in wanted) for ranks in cases)
        for cases in _cases(sample, num_ranks)
    )


@settings(max_examples=200)
@given(SEEDS, st.sets(st.sampled_from(NAMES), min_size=1), st.integers(1, 4))
def test_the_share_of_a_union_is_that_of_all_cases(seed: int, names: set[str], num_ranks: int) -> None:
    sample = _sample(seed, num_ranks=2, num_steps=3)
    assert sample.share(names, num_ranks) == pytest.approx(_counted(sample, names, num_ranks))


@given(SEEDS, st.sets(st.sampled_from(NAMES), min_size=1))
def test_one_rank_uses_what_ranks_used(seed: int, names: set[str]) -> None:
    sample = _sample(seed)
    places = [place for place, group in enumerate(sample.groups) if names.intersection(group)]
    ranks = [one for step in sample.steps for one in step]
    expected = statistics.fmean(any(one[place] == "1" for place in places) for one in ranks)
    assert sample.share(names, 1) == pytest.approx(1.0 if names - sample.names else expected)


@given(SEEDS, st.sets(st.sampled_from(NAMES), min_size=1), st.integers(1, 9))
def test_more_ranks_and_more_variables_are_used_more(seed: int, names: set[str], num_ranks: int) -> None:
    sample = _sample(seed)
    assert sample.share(names, num_ranks) <= sample.share(names, num_ranks + 1) + 1e-12
    shares = [sample.share([name], num_ranks) for name in names]
    assert max(shares) - 1e-12 <= sample.share(names, num_ranks) <= min(1.0, sum(shares)) + 1e-12


def test_what_is_in_no_group_is_used_always() -> None:
    sample = UseSample(groups=(("a",),), steps=(("0",),))
    assert sample.share(["other"], 1) == sample.share(["a", "other"], 7) == 1
    assert sample.share(["a"], 7) == 0


@given(SEEDS, st.integers(1, 9))
def test_drawn_steps_are_steps_of_the_sample(seed: int, num_ranks: int) -> None:
    sample = _sample(seed)
    drawn = sample.drawn(num_ranks)
    assert drawn == sample.drawn(num_ranks)
    assert sum(share for _, share in drawn) == pytest.approx(1)
    assert len(drawn) <= NUM_DRAWN
    for unused, _ in drawn:
        assert unused <= sample.names
        assert all(unused.issuperset(group) or unused.isdisjoint(group) for group in sample.groups)
        if num_ranks == sample.num_ranks:
            assert unused in [_unused(sample, step) for step in sample.steps]


def _unused(sample: UseSample, ranks: Sequence[str]) -> frozenset[str]:
    left = [group for place, group in enumerate(sample.groups) if all(one[place] == "0" for one in ranks)]
    return frozenset(name for group in left for name in group)


def test_drawn_steps_have_each_kind_as_often_as_the_sample() -> None:
    """Steps take turns, and steps that are evenly spaced in time might all be of one kind."""
    steps = tuple((one, one) for _ in range(8) for one in ("1000", "0100", "0010", "0001"))
    sample = UseSample(groups=tuple((name,) for name in NAMES), steps=steps)
    assert [share for _, share in sample.drawn(2)] == [0.25] * 4


@given(SEEDS, st.integers(0, 50))
def test_a_replay_has_the_steps_of_the_sample(seed: int, step: int) -> None:
    sample = _sample(seed)
    sampled = sample.steps[step % len(sample.steps)]
    replayed = [sample.unused_by(rank, sample.num_ranks, step) for rank in range(sample.num_ranks)]
    assert sorted(map(sorted, replayed)) == sorted(sorted(_unused(sample, [one])) for one in sampled)
    known = [_unused(sample, [one]) for each in sample.steps for one in each]
    assert all(sample.unused_by(rank, 99, step) in known for rank in range(6))


def test_ranks_that_use_the_same_in_a_step_are_told_from_those_that_do_not() -> None:
    rng = random.Random(0)
    topics = [{NAMES[step % 4]} for step in range(32)]
    alike = sample_of([topics] * 4, NAMES)
    some_alike = sample_of([[topic | {rng.choice(NAMES)} for topic in topics] for _ in range(4)], NAMES)
    apart = sample_of([[{rng.choice(NAMES)} for _ in range(32)] for _ in range(4)], NAMES)
    assert alike is not None
    assert some_alike is not None
    assert apart is not None
    assert (alike.is_shared, some_alike.is_shared, apart.is_shared) == (True, True, False)
    assert alike.share("a", 64) == alike.share("a", 1) == 0.25
    assert apart.share("a", 64) > 0.99


def test_variables_that_are_used_together_are_a_group() -> None:
    series = [[{"a", "b", "d"}, {"d"}], [{"a", "b", "c", "d"}, {"d"}]]
    assert sample_of(series, NAMES) == UseSample(groups=(("a", "b"), ("c",)), steps=(("10", "11"), ("00", "00")))
    assert sample_of([[set(NAMES)] * 3] * 2, NAMES) is None


def test_a_sample_is_one_of_its_model() -> None:
    model = model_of()
    groups = tuple((variable.name,) for variable in model.variables)
    assert replace(model, use_sample=UseSample(groups=groups, steps=(("100",),))).fingerprint() == model.fingerprint()
    with pytest.raises(ValueError, match="a rank of use_sample uses no variable"):
        replace(model, use_sample=UseSample(groups=groups, steps=(("100", "000"),)))
    with pytest.raises(ValueError, match="use_sample names 'other'"):
        replace(model, use_sample=UseSample(groups=(("other",),), steps=(("0",),)))


def test_a_sample_is_kept_in_the_file(tmp_path: Path) -> None:
    sample = UseSample(groups=(("linear",), ("bias", "table")), steps=(("01", "10"), ("11", "11")))
    model = replace(model_of(), use_sample=sample)
    # One line for each group and step.
    assert '- ["01", "10"]\n' in format_model(model)
    for name in ("m.yaml", "m.json"):
        save_model(model, tmp_path / name)
        assert load_model(str(tmp_path / name)) == model


@pytest.mark.parametrize(
    ("groups", "steps", "what"),
    [
        ((), (("",),), "a group is empty"),
        ((("a",), ()), (("10",),), "a group is empty"),
        ((("a",), ("a",)), (("10",),), "'a' is in two groups"),
        ((("a",),), (), "steps have different numbers of ranks"),
        ((("a",),), ((),), "steps have different numbers of ranks"),
        ((("a",),), (("1",), ("1", "0")), "steps have different numbers of ranks"),
        ((("a",),), (("11",),), "'11' does not say which of 1 groups were used"),
        ((("a",),), (("x",),), "'x' does not say which of 1 groups were used"),
    ],
)
def test_a_sample_that_makes_no_sense_is_refused(
    groups: tuple[tuple[str, ...], ...], steps: tuple[tuple[str, ...], ...], what: str
) -> None:
    with pytest.raises(ValueError, match=what):
        UseSample(groups=groups, steps=steps)
