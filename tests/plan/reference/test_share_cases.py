"""Random strategies with uneven shares of the batch: in the reference they train as one process does."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.strategy.shares import deal
from tests.plan.reference.plan_properties import Case, check_form, check_run, draw


def _divided(rng: random.Random, count: int) -> Iterator[Case]:
    """So many cases of `draw` with random shares, if the strategy may have shares."""
    while count:
        for case in draw(rng, 4):
            num_workers = case.cluster.num_workers
            refuses = any(message.synchroniser.refuses_shares for message in case.strategy.messages)
            if refuses or num_workers == 1 or "lossy" in case.strategy.classes:
                continue
            model = replace(case.model, batch_size=rng.choice((2, 5, 8)))
            rates = [rng.uniform(0.1, 4) for _ in range(num_workers)]
            shares = deal(model.batch_size * num_workers, rates)
            yield replace(case, model=model, strategy=replace(case.strategy, shares=shares))
            count -= 1
            if not count:
                return


@given(seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_strategies_with_shares_train_as_one_process_does(seed: int) -> None:
    (case,) = _divided(random.Random(seed), 1)
    assert "legal" in set(check_form(case))
    found = set(check_run(case))
    assert {"no deadlock", "replicas agree", "meaning"} <= found
    assert "exact" in found or not case.strategy.is_exact


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_thousand_strategies_with_shares() -> None:
    for case in _divided(random.Random(30), 2000):
        assert "meaning" in set(check_run(case)), case
