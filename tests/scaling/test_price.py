"""Prices as text, and the cost of training."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.scaling.price import Price, parse_price


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("3.20/h", Price(per_hour=3.2)),
        ("3.20 USD/h", Price(per_hour=3.2, currency="USD")),
        ("EUR 3/h", Price(per_hour=3.0, currency="EUR")),
        ("$0.5 / h", Price(per_hour=0.5, currency="$")),
    ],
)
def test_a_price_in_words(text: str, price: Price) -> None:
    assert parse_price(text) == price


@pytest.mark.parametrize("text", ["", "3.20", "3.20/day", "-1/h", "0/h", "USD 3 EUR/h", "1e3/h", "nan/h", "9" * 70])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no price"):
        parse_price(text)


@given(st.integers(1, 1000), st.floats(0, 1e6), st.floats(1e-3, 1e3))
def test_cost_is_linear(num_nodes: int, seconds: float, per_hour: float) -> None:
    price = Price(per_hour=per_hour)
    assert price.cost(num_nodes, seconds) == pytest.approx(num_nodes * price.cost(1, seconds))
    assert price.cost(1, 3600) == pytest.approx(per_hour)
