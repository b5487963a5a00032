"""Input settings as an aspect of the space: drawn, changed, crossed and counted, where a task has a dataset."""

import random
from collections import Counter
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.input_cost import InputCost
from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.canonical import canonical, strategy_id
from autosync.strategy.describe import in_words
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.space.input_choice import MOST_BATCHES_AHEAD, InputChoice, input_choice

CLUSTER = ClusterSpec(
    name="test",
    nodes=tuple(Node(name=f"n{i}", host=f"n{i}", bandwidth_out=1e9, bandwidth_in=1e9) for i in range(2)),
)
REMOTE = InputCost(example_bytes=200_000, worker_seconds=0.001, by_loader=True)
FOUR_WORKERS = InputSettings(num_workers=4)


@pytest.fixture(scope="module")
def bare() -> ModelSpec:
    return load_model("resnet20")


@pytest.fixture(scope="module")
def model(bare: ModelSpec) -> ModelSpec:
    return replace(bare, input=REMOTE)


@pytest.fixture(scope="module")
def ddp(bare: ModelSpec) -> Strategy:
    return build_preset("ddp", bare, CLUSTER)


def _choice(model: ModelSpec, cost: InputCost) -> InputChoice:
    found = input_choice(replace(model, input=cost), Limits(), "gloo")
    assert found is not None
    return found


def test_only_a_task_with_a_dataset_has_a_choice(bare: ModelSpec, model: ModelSpec) -> None:
    assert input_choice(bare, Limits(), "gloo") is None
    assert input_choice(replace(model, input=replace(REMOTE, by_loader=False)), Limits(), "gloo") is None
    assert input_choice(model, Limits(input=False), "gloo") is None
    assert input_choice(model, Limits(), "gloo") is not None


@given(
    seed=st.integers(0, 10**6),
    example_bytes=st.sampled_from([0.0, 1e3, 3e5, 1e8]),
    worker_seconds=st.floats(0, 1),
    batch_size=st.integers(1, 512),
)
def test_draws_and_changes_are_within_the_limits(
    seed: int, example_bytes: float, worker_seconds: float, batch_size: int
) -> None:
    cost = InputCost(example_bytes=example_bytes, worker_seconds=worker_seconds, by_loader=True)
    choice, rng = _choice(replace(load_model("resnet20"), batch_size=batch_size), cost), random.Random(seed)
    settings: InputSettings | None = rng.choice([None, FOUR_WORKERS, choice.draw(rng)])
    for _ in range(5):
        before, settings = settings or InputSettings(), choice.change(settings, rng)
        assert settings != before or before.num_workers * before.prefetch_factor >= MOST_BATCHES_AHEAD
        assert settings.num_workers * settings.prefetch_factor <= MOST_BATCHES_AHEAD or settings.prefetch_factor == 1
        if not example_bytes:
            assert (settings.read_bytes, settings.read_concurrency, settings.right_of_way) == (2**20, 4, "shared")


def test_workers_that_cannot_keep_up_are_rare(bare: ModelSpec) -> None:
    work = 4 * bare.step_seconds / bare.batch_size
    choice, rng = _choice(bare, InputCost(worker_seconds=work, by_loader=True)), random.Random(1)
    drawn = Counter(choice.draw(rng).num_workers for _ in range(1000))
    assert drawn[4] > 3 * drawn[2] > 6 * drawn[0]
    assert drawn[8] > 100
    idle = _choice(bare, InputCost(worker_seconds=work / 100, by_loader=True))
    drawn = Counter(idle.draw(rng).num_workers for _ in range(1000))
    assert drawn[1] > 2 * drawn[16] > 0
    assert drawn[0] > 100


def test_requests_are_no_longer_than_an_example_needs(bare: ModelSpec) -> None:
    assert max(_choice(bare, REMOTE).read_bytes) == 2**18
    assert max(_choice(bare, replace(REMOTE, example_bytes=1e9)).read_bytes) == 2**23


def test_reads_and_messages_give_way_only_where_the_engine_carries_both(model: ModelSpec) -> None:
    for backend, rights in (("gloo", {"shared", "gradients", "reads"}), ("nccl", {"shared"})):
        choice, rng = input_choice(model, Limits(), backend), random.Random(4)
        assert choice is not None
        assert {choice.draw(rng).right_of_way for _ in range(50)} == rights


def test_the_space_draws_mutates_and_crosses_it(model: ModelSpec, ddp: Strategy) -> None:
    space, rng = Space(model=model, cluster=CLUSTER), random.Random(2)
    assert all(space.sample(rng).input is not None for _ in range(30))
    changed = [space.mutate(ddp, rng) for _ in range(200)]
    with_settings = [one for one in changed if one.input is not None]
    assert 15 < len(with_settings) < 80
    assert all(space.contains(one) for one in changed)
    # A mutation changes one aspect.
    assert all(replace(one, name="", input=None) == replace(ddp, name="") for one in with_settings)
    other = replace(ddp, input=FOUR_WORKERS)
    assert {space.crossover(ddp, other, rng).input for _ in range(40)} == {None, FOUR_WORKERS}
    assert space.crossover(other, other, rng).input == FOUR_WORKERS


def test_the_space_is_larger_by_the_settings(bare: ModelSpec, model: ModelSpec) -> None:
    with_them, without = (Space(model=one, cluster=CLUSTER).log10_size() for one in (model, bare))
    assert with_them == pytest.approx(without + _choice(bare, REMOTE).log10_size())


def test_limits_may_leave_it_out(model: ModelSpec, ddp: Strategy) -> None:
    space = Space(model=model, cluster=CLUSTER, limits=Limits(input=False))
    assert all(space.sample(random.Random(seed)).input is None for seed in range(10))
    (problem,) = space.problems(replace(ddp, input=FOUR_WORKERS))
    assert "4 workers, prefetch 2 is outside the limits" in str(problem)


def test_the_loaders_defaults_are_no_other_strategy(bare: ModelSpec, model: ModelSpec, ddp: Strategy) -> None:
    usual = replace(ddp, input=InputSettings())
    assert canonical(usual, model, CLUSTER).input is None
    assert strategy_id(usual, model, CLUSTER) == strategy_id(ddp, model, CLUSTER)
    # A script without settings keeps its own, which are not known.
    assert canonical(usual, bare, CLUSTER).input == InputSettings()
    assert canonical(replace(ddp, input=FOUR_WORKERS), model, CLUSTER).input == FOUR_WORKERS


def test_stated_settings_are_where_changes_begin(bare: ModelSpec, ddp: Strategy) -> None:
    stated = InputSettings(num_workers=4, worker_threads=3)
    model = replace(bare, input=replace(REMOTE, stated=stated))
    assert canonical(replace(ddp, input=stated), model, CLUSTER).input is None
    assert canonical(replace(ddp, input=InputSettings()), model, CLUSTER).input == InputSettings()
    choice, rng = input_choice(model, Limits(), "gloo"), random.Random(3)
    assert choice is not None
    assert choice.draw(rng).worker_threads == 3
    for _ in range(20):
        changed = choice.change(None, rng)
        names = [field.name for field in fields(InputSettings)]
        if changed.num_workers > stated.num_workers:
            # More workers may read less far ahead each.
            names.remove("prefetch_factor")
        assert sum(getattr(changed, name) != getattr(stated, name) for name in names) == 1


def test_words_tell_it(model: ModelSpec, ddp: Strategy) -> None:
    told = in_words(replace(ddp, input=replace(FOUR_WORKERS, read_bytes=2**18, read_concurrency=16)), model)
    assert told.endswith("; input: 4 workers, prefetch 2, requests of 256 KiB, 16 at a time")
    told = in_words(replace(ddp, input=replace(FOUR_WORKERS, right_of_way="gradients")), model)
    assert told.endswith("; input: 4 workers, prefetch 2, gradients first on the links")
