"""The price of nodes by the hour, and the cost of training at a throughput."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_WORD = re.compile(
    r"\s*(?P<before>[A-Z]{3}|[$€£¥])?\s*(?P<amount>[0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(?P<after>[A-Z]{3}|[$€£¥])?\s*/\s*h\s*",
    re.ASCII,
)
_RULE = "write a price of a node and hour such as '3.20/h' or '3.20 USD/h'"
_LONGEST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of one node for an hour; `currency` is empty if none was given."""

    per_hour: float
    currency: str = ""

    def cost(self, num_nodes: int, seconds: float) -> float:
        """Return the cost of nodes for some time."""
        return self.per_hour * num_nodes * seconds / 3600


def parse_price(text: str) -> Price:
    """Return the price that a text such as `3.20/h` states."""
    match = _WORD.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or (match["before"] and match["after"]):
        shown = repr(text) if len(text) <= _LONGEST else "this"
        raise ValueError(f"{shown} is no price ({_RULE})")
    amount = float(match["amount"])
    if not (math.isfinite(amount) and amount > 0):
        raise ValueError(f"{text!r} is no price (above 0)")
    return Price(per_hour=amount, currency=match["before"] or match["after"] or "")
