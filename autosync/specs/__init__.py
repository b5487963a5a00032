"""Specs of tasks, models and clusters: plain values that are checked when files are read."""
