"""Carries out the batching of a bundle: the policy of modules that run graphs, and the deal of their examples."""

from __future__ import annotations

import torch

from autosync.errors import InputError
from autosync.specs.graph_batching import GraphProfile, TakesBatching
from autosync.strategy.bundle import Bundle


def take_batching(model: torch.nn.Module, bundle: Bundle) -> None:
    """Let a model follow its bundle's batching, if there is one; refuse a model that runs no graphs."""
    batching, profile = bundle.strategy.batching, bundle.model.graphs
    if batching is None:
        return
    assert profile is not None, "a legal strategy with a batching is for a model of graphs"
    modules = [one for one in model.modules() if isinstance(one, TakesBatching)]
    if not modules:
        what = f"the bundle says how to batch the graphs of {bundle.model.name}, and this model has no VertexModel"
        raise InputError(what, rule="a bundle runs the model that it was made for")
    for module in modules:
        module.take_batching(batching, profile)


def dealing_profile(bundle: Bundle) -> GraphProfile | None:
    """Return the profile by whose costs a bundle's examples are dealt; None if they are dealt by count."""
    batching = bundle.strategy.batching
    return bundle.model.graphs if batching is not None and batching.dealing == "cost" else None
