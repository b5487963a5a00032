"""Random models on random batches: every policy gives the outputs and gradients of one vertex after the other."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.graphs.policy import BatchingPolicy
from tests.helpers.policy_checks import NAIVE, check_policies, run_model
from tests.helpers.random_graphs import random_family, random_model


@pytest.mark.timeout(300)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**31))
def test_every_policy_equals_naive_execution(seed: int) -> None:
    check_policies(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_thousand_models() -> None:
    for seed in range(2000):
        check_policies(seed)


def test_the_check_notices_rows_that_depend_on_each_other() -> None:
    chance = random.Random(1)
    model = random_model(chance)
    graphs = [random_family(chance, model.kinds) for _ in range(3)]
    rows, _ = run_model(model, graphs, NAIVE)
    for function in model.functions.values():
        function.push = lambda states, push=function.push: push(states - states.mean(dim=0))
    mixed, _ = run_model(model, graphs, BatchingPolicy())
    assert not torch.allclose(rows, mixed)
