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
