"""Shares: their rules, their canonical form, and how they are dealt."""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autosync.documents import parse_document
from autosync.errors import DoesNotApplyError, InputError
from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model_file import load_model
from autosync.strategy import legality
from autosync.strategy.canonical import strategy_id
from autosync.strategy.describe import describe
from autosync.strategy.diff import diff, format_diff
from autosync.strategy.emit.ddp import settings_for
from autosync.strategy.files import dump_strategy, parse_strategy
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.shares import deal, weights_of
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors
from tests.helpers.example_plans import model_of

MODEL = replace(model_of(), batch_size=4)


def _cluster(*speeds: float, alike: tuple[tuple[str, ...], ...] = ()) -> ClusterSpec:
    nodes = tuple(
        Node(name=f"n{i}", host=f"n{i}", bandwidth_out=1e8, bandwidth_in=1e8, compute=speed)
        for i, speed in enumerate(speeds)
    )
    return ClusterSpec(name="test", nodes=nodes, alike=alike)


CLUSTER = _cluster(1, 1, 4)
PLAIN = Strategy(messages=(Message(parts=tuple(variable.name for variable in MODEL.variables)),))


def _problems(*shares: int, strategy: Strategy = PLAIN) -> str:
    return "; ".join(map(str, legality.problems(replace(strategy, shares=shares), MODEL, CLUSTER)))


@given(
    num_examples=st.integers(1, 300),
    rates=st.lists(st.floats(0.01, 100) | st.sampled_from([1.0, 3.0]), min_size=1, max_size=8),
)
@example(num_examples=20, rates=[1.0] * 8)
def test_dealt_shares_are_whole_and_none_is_empty(num_examples: int, rates: list[float]) -> None:
    if num_examples < len(rates):
        with pytest.raises(InputError, match="at least one example"):
            deal(num_examples, rates)
        return
    shares = deal(num_examples, rates)
    assert sum(shares) == num_examples
    assert min(shares) >= 1
    exact = [num_examples * rate / math.fsum(rates) for rate in rates]
    if all(one >= 1 for one in exact):
        pairs = zip(shares, exact, strict=True)
        assert all(math.floor(one) <= share < one + len(rates) for share, one in pairs)
    for rate in rates:
        alike = [share for share, other in zip(shares, rates, strict=True) if other == rate]
        assert max(alike) - min(alike) <= 1


@given(shares=st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_weights_have_the_mean_one(shares: list[int]) -> None:
    weights = weights_of(shares)
    assert sum(weights) == pytest.approx(len(shares))
    assert weights == pytest.approx([weights[0] * share / shares[0] for share in shares])


def test_rules() -> None:
    assert _problems(2, 2, 8) == ""
    assert "2 shares (one for each of 3 worker ranks)" in _problems(2, 10)
    assert "rank 1 has 0 examples" in _problems(2, 0, 10)
    assert "the shares make 11 examples (they make the global batch: 3 ranks with a batch of 4, 12)" in _problems(
        2, 1, 8
    )


@pytest.mark.parametrize("synchroniser", [Periodic(every=2), SufficientFactors()])
def test_what_refuses_uneven_shares(synchroniser: Periodic | SufficientFactors) -> None:
    first, *others = PLAIN.messages[0].parts
    messages = (Message(parts=(first,), synchroniser=synchroniser), Message(parts=tuple(others)))
    strategy = Strategy(messages=messages)
    assert f"{synchroniser.kind} with uneven shares" in _problems(2, 2, 8, strategy=strategy)
    assert "uneven shares" not in _problems(4, 4, 4, strategy=strategy)


def test_a_task_that_declares_no_batch_is_told_so() -> None:
    found = legality.problems(replace(PLAIN, shares=(1, 1, 4)), replace(MODEL, batch_size=1), CLUSTER)
    assert "declare the examples of a rank's batch" in str(found[0])


def test_even_shares_are_no_shares() -> None:
    even, uneven = replace(PLAIN, shares=(4, 4, 4)), replace(PLAIN, shares=(2, 2, 8))
    assert strategy_id(even, MODEL, CLUSTER) == strategy_id(PLAIN, MODEL, CLUSTER)
    assert strategy_id(uneven, MODEL, CLUSTER) != strategy_id(PLAIN, MODEL, CLUSTER)
    assert lower(even, MODEL, CLUSTER) == lower(PLAIN, MODEL, CLUSTER)
    assert "shares" not in dump_strategy(PLAIN)
    assert dump_strategy(uneven)["shares"] == [2, 2, 8]


def test_equal_nodes_may_swap_their_shares() -> None:
    cluster = _cluster(1, 1, 4, alike=(("n0", "n1"),))
    ids = [plan_id(lower(replace(PLAIN, shares=one), MODEL, cluster), cluster) for one in ((1, 3, 8), (3, 1, 8))]
    assert ids[0] == ids[1]
    assert plan_id(lower(replace(PLAIN, shares=(2, 2, 8)), MODEL, cluster), cluster) != ids[0]
    assert plan_id(lower(PLAIN, MODEL, cluster), cluster) != ids[0]


def test_files_words_and_differences() -> None:
    text = "schema: autosync.strategy/1\nshares: [2, 2, 8]\nmessages:\n- parts: [a]\n"
    strategy = parse_strategy(parse_document(text, file="s.yaml"))
    assert strategy.shares == (2, 2, 8)
    assert "the ranks compute 2, 2 and 8 of 12 examples" in describe(strategy)
    assert format_diff(diff(replace(strategy, shares=()), strategy)) == "the whole step: shares: even -> 2 2 8"


def test_stock_ddp_cannot_weigh() -> None:
    cluster, model = _cluster(1, 1, 2, 4), load_model("resnet20")
    strategy = build_preset("uneven_batches", model, cluster)
    with pytest.raises(DoesNotApplyError, match="uneven shares of the batch"):
        settings_for(strategy, model, cluster)
    assert strategy.shares == (64, 64, 128, 256)
