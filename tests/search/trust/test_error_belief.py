"""What is believed of standardised errors follows the rules of probability, and is fitted to errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from autosync.search.trust.error_belief import FARTHEST, ErrorBelief, fitted, log_likelihood

_errors = st.lists(st.floats(-5, 5), max_size=8)
_beliefs = st.builds(
    ErrorBelief,
    bias=st.floats(-2, 2),
    bias_weight=st.floats(0.5, 20),
    scale=st.floats(0.1, 3),
    scale_weight=st.floats(3, 30),
)


@given(belief=_beliefs, errors=_errors, cut=st.integers(0, 8))
def test_the_order_in_which_errors_are_learned_does_not_matter(
    belief: ErrorBelief, errors: list[float], cut: int
) -> None:
    at_once = belief.after(errors)
    in_turn = belief.after(errors[cut:]).after(errors[:cut])
    for name in ("bias", "bias_weight", "scale", "scale_weight"):
        assert getattr(in_turn, name) == pytest.approx(getattr(at_once, name))


@given(belief=_beliefs, confidence=st.floats(0.1, 0.99))
def test_an_interval_holds_the_share_of_errors_that_it_says(belief: ErrorBelief, confidence: float) -> None:
    low, high = belief.interval(confidence)
    scale = belief.scale * math.sqrt(1 + 1 / belief.bias_weight)
    ends = stats.t.cdf((np.array([low, high]) - belief.bias) / scale, belief.scale_weight)
    assert ends[1] - ends[0] == pytest.approx(confidence)


@given(belief=_beliefs)
def test_the_biases_have_the_mean_and_the_spread_of_the_belief(belief: ErrorBelief) -> None:
    values, chances = np.array(belief.biases()).T
    assert chances.sum() == pytest.approx(1)
    mean = values @ chances
    assert mean == pytest.approx(belief.bias)
    assert (values - mean) ** 2 @ chances == pytest.approx(belief.scale**2 / belief.bias_weight)


@given(belief=_beliefs, errors=_errors.filter(bool))
def test_errors_are_as_likely_together_as_one_after_the_other(belief: ErrorBelief, errors: list[float]) -> None:
    total = 0.0
    for number, error in enumerate(errors):
        before = belief.after(errors[:number])
        scale = before.scale * math.sqrt(1 + 1 / before.bias_weight)
        total += float(stats.t.logpdf(error, before.scale_weight, before.bias, scale))
    shorter = np.full((2, len(errors) + 1), np.nan)
    shorter[0, : len(errors)] = errors
    assert log_likelihood(belief, shorter) == pytest.approx(total, abs=1e-6)


def test_trials_that_disappoint_are_believed() -> None:
    shipped = ErrorBelief(bias=0.0, bias_weight=4.0, scale=1.0, scale_weight=10.0)
    disappointed = shipped.after([2.0] * 6)
    assert disappointed.bias > 1
    assert disappointed.interval(0.5)[0] > shipped.interval(0.5)[0]


def test_one_broken_trial_does_not_hide_the_others() -> None:
    belief = ErrorBelief(bias=0.0, bias_weight=4.0, scale=1.0, scale_weight=10.0)
    assert belief.after([1e6]) == belief.after([FARTHEST])


def test_a_belief_is_fitted_to_targets_that_each_have_a_bias() -> None:
    rng = np.random.default_rng(0)
    groups = [(0.5 + rng.normal(0, 1.0) + rng.normal(0, 0.5, 12)).tolist() for _ in range(60)]
    found = fitted(groups)
    assert found.bias == pytest.approx(0.5, abs=0.3)
    assert found.scale == pytest.approx(0.5, abs=0.1)
    # The bias of a target is known as badly as a quarter of an error would tell it; half of one is the least.
    assert found.bias_weight < 1


@pytest.mark.parametrize("figures", [{"scale": 0.0}, {"bias_weight": -1.0}, {"bias": math.nan}])
def test_what_is_no_belief_is_refused(figures: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"above 0|finite"):
        ErrorBelief(**{"bias": 0.0, "bias_weight": 1.0, "scale": 1.0, "scale_weight": 1.0, **figures})
