"""Profiling: runs a task's real model and writes a model spec from what was recorded."""
