"""Prices of messages in closed form, scheduled in one pass: fast enough to look at tens of thousands of strategies."""
