"""Proposers: who says which strategies to try next. All go by the same history, and keep no truth of their own."""
