"""Predictions by Python, while simulators are being compiled, are those of the compiled functions to the last bit."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.first_calls import FIRST_CALLS
from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.strategy.space import Space
from tests.helpers.random_specs import random_cluster, random_model


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_python_predicts_as_compiled_functions_do(seed: int) -> None:
    rng = random.Random(seed)
    model, cluster = random_model(rng), random_cluster(rng)
    strategies = [Space(model=model, cluster=cluster).sample(rng) for _ in range(2)]
    for kind in (TimelineSimulator, AnalyticalSimulator):
        compiled = kind(model, cluster).predict(strategies)
        with FIRST_CALLS.recording():
            by_python = kind(model, cluster).predict(strategies)
        assert by_python == compiled, kind.name
