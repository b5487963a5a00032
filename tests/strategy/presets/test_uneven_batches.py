"""The shares of `uneven_batches`: no other shares have a faster slowest rank, by its own model of time."""

import itertools
from dataclasses import replace

import pytest

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.uneven_batches import _Times

CLUSTER = load_cluster("4-hosts-uneven")


@pytest.mark.parametrize("factor", [0.01, 1, 100])
@pytest.mark.parametrize("batch_size", [2, 4])
def test_no_other_shares_are_faster(factor: float, batch_size: int) -> None:
    model = replace(load_model("resnet18").dilated(factor), batch_size=batch_size)
    strategy = build_preset("uneven_batches", model, CLUSTER)
    times = _Times(replace(strategy, shares=()), model, CLUSTER)
    total = 4 * batch_size
    best = min(
        max(times.of(rank, share) for rank, share in enumerate((*some, total - sum(some))))
        for some in itertools.product(range(1, total), repeat=3)
        if sum(some) < total
    )
    assert max(times.of(rank, share) for rank, share in enumerate(strategy.shares)) == pytest.approx(best)


def test_where_compute_hides_the_links_shares_follow_the_speeds() -> None:
    model = replace(load_model("resnet18").dilated(1000), batch_size=32)
    assert build_preset("uneven_batches", model, CLUSTER).shares == (16, 16, 32, 64)


def test_it_says_where_it_does_not_apply() -> None:
    model = load_model("resnet18")
    with pytest.raises(DoesNotApplyError, match="compute at the same speed"):
        build_preset("uneven_batches", model, load_cluster("4-hosts"))
    with pytest.raises(DoesNotApplyError, match="cannot be divided"):
        build_preset("uneven_batches", replace(model, batch_size=1), CLUSTER)


def test_each_example_is_dealt_with_one_look_at_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a thousand ranks, a look at all of them for each example takes minutes."""
    model = replace(load_model("resnet18"), batch_size=8)
    nodes = tuple(
        replace(CLUSTER.nodes[0], name=f"n{number}", host=f"n{number}", compute=1.0 + number % 3)
        for number in range(100)
    )
    looks, usual = [], _Times.of
    monkeypatch.setattr(_Times, "of", lambda *given: looks.append(given) or usual(*given))
    shares = build_preset("uneven_batches", model, replace(CLUSTER, nodes=nodes, alike=())).shares
    assert sum(shares) == 800
    assert len(looks) <= 800
