"""The reference's codecs: what they keep, how large it is, and what they are bound to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.plan.reference.codecs import decode, encode, orthogonal
from autosync.plan.wires import encoded_bytes, num_kept
from autosync.strategy.codecs import Cast, Codec, Int8, PowerSGD, Sign, TopK

NUMBERS = st.lists(st.floats(-1e4, 1e4, allow_subnormal=False, width=32), min_size=1, max_size=60).map(np.array)


def there_and_back(codec: Codec, values: np.ndarray) -> np.ndarray:
    return decode(codec, encode(codec, values), len(values))


@given(NUMBERS)
def test_casts_round_to_so_many_bits(values: np.ndarray) -> None:
    # Half precision has 11 bits from 2^-14 on and steps of 2^-24 below it; bfloat16 has 8 bits everywhere.
    half = there_and_back(Cast(dtype="float16"), values)
    assert (np.abs(half - values) <= np.maximum(np.abs(values) * 2.0**-11, 2.0**-25)).all()
    brain = there_and_back(Cast(dtype="bfloat16"), values)
    assert (np.abs(brain - values) <= np.abs(values) * 2.0**-8 + 1e-38).all()


def test_bfloat16_rounds_to_even() -> None:
    ulp = 2.0**-7
    values = np.array([1.0, 1 + ulp / 2, 1 + 3 * ulp / 2, 1 + ulp / 2 + 2.0**-20, -1 - ulp / 2])
    expected = [1.0, 1.0, 1 + 2 * ulp, 1 + ulp, -1.0]
    assert there_and_back(Cast(dtype="bfloat16"), values).tolist() == expected


@given(NUMBERS, st.integers(1, 20))
def test_int8_is_within_half_a_step_of_each_block(values: np.ndarray, block: int) -> None:
    found = there_and_back(Int8(block=block), values)
    for start in range(0, len(values), block):
        piece = values[start : start + block]
        step = np.abs(piece).max() / 127
        assert (np.abs(found[start : start + block] - piece) <= step * 0.5001 + 1e-30).all()


@given(NUMBERS, st.floats(0.01, 1.0))
def test_top_k_keeps_the_largest(values: np.ndarray, ratio: float) -> None:
    codec = TopK(ratio=ratio)
    found = there_and_back(codec, values)
    kept = found != 0
    assert kept.sum() <= num_kept(codec, len(values))
    np.testing.assert_array_equal(found[kept], values[kept].astype(np.float32))
    dropped = np.abs(values[~kept])
    if kept.any() and dropped.any():
        assert dropped.max() <= np.abs(values[kept]).min()


@given(NUMBERS)
def test_sign_keeps_signs_and_the_mean_magnitude(values: np.ndarray) -> None:
    found = there_and_back(Sign(), values)
    np.testing.assert_array_equal(found > 0, (values >= 0) & (np.float32(np.mean(np.abs(values))) > 0))
    np.testing.assert_allclose(np.abs(found), np.mean(np.abs(values)), rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize(
    ("codec", "num_elements", "num_bytes"),
    [
        (Cast(), 10, 20),
        (Int8(block=4), 10, 10 + 3 * 4),
        (TopK(ratio=0.25), 10, 3 * 8),
        (TopK(ratio=0.001), 10, 8),
        (Sign(), 9, 2 + 4),
    ],
)
def test_sizes(codec: Codec, num_elements: int, num_bytes: int) -> None:
    assert encoded_bytes(codec, num_elements) == num_bytes


def test_power_sgd_encodes_no_vectors() -> None:
    with pytest.raises(ValueError, match="power_sgd"):
        encode(PowerSGD(), np.zeros(3))
    with pytest.raises(ValueError, match="power_sgd"):
        encoded_bytes(PowerSGD(), 3)


def test_orthogonal_columns_span_the_same() -> None:
    matrix = np.random.default_rng(0).standard_normal((7, 3))
    basis = orthogonal(matrix)
    np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(basis @ (basis.T @ matrix), matrix, atol=1e-12)
