"""Costs for tests of simulators."""

from __future__ import annotations

from autosync.specs.cost_profiles import cost_profile

GLOO = cost_profile("gloo-cpu").costs
"""The costs of clusters whose file says nothing of them."""
