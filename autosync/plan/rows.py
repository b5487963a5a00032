"""Computes how many distinct rows of an embedding several ranks touch together."""

from __future__ import annotations


def union_rows(rows: float, touched: float, n: float) -> float:
    """Return the expected union of n independent draws of `touched` out of `rows` rows: R(1 - (1 - t/R)^n)."""
    if rows <= 0:
        return 0.0
    share = min(1.0, touched / rows)
    return float(rows * (1.0 - (1.0 - share) ** n))


def whole_rows(expected: float) -> int:
    """Round an expected number of rows to the whole number that plans use: at least 1 if any row is expected."""
    return max(1, round(expected)) if expected > 0 else 0
