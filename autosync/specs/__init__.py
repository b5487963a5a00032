"""Specs of tasks, models and clusters: plain values, checked where files are read."""
