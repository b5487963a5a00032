"""How many distinct rows of an embedding several ranks touch together."""

from __future__ import annotations


def union_rows(rows: float, touched: float, n: float) -> float:
    """Expected rows in the union of n independent draws of `touched` out of `rows`: R(1 - (1 - t/R)^n)."""
    if rows <= 0:
        return 0.0
    share = min(1.0, touched / rows)
    return float(rows * (1.0 - (1.0 - share) ** n))
