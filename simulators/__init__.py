"""Predict the step time of a strategy without running it."""
