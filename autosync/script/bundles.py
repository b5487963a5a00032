"""Loads the bundles of a launch and finds the one that fits a model."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from autosync.errors import InputError, OperationError
from autosync.plan.lowering import lower
from autosync.runtime.checkpoints.state_kinds import variables_kept_apart
from autosync.runtime.local.engine_updates import engine_updates
from autosync.runtime.session.agreement import parameters_of
from autosync.specs.rank_variables import BUNDLE_VARIABLE, bundle_variable
from autosync.strategy.bundle import Bundle, load_bundle
from autosync.strategy.shares import in_words


def bundles_at_hand(environment: Mapping[str, str] = os.environ) -> list[Bundle]:
    """Return the bundles named by the environment: AUTOSYNC_BUNDLE, then AUTOSYNC_BUNDLE_2 and so on."""
    paths = list(_paths(environment))
    if not paths:
        raise InputError(
            f"{BUNDLE_VARIABLE} is not set",
            rule="a script is trained by a bundle",
            hint=f"autosync launch BUNDLE -- train.py, or {BUNDLE_VARIABLE}=BUNDLE torchrun … -m autosync.run train.py",
        )
    return [load_bundle(Path(path)) for path in paths]


def _paths(environment: Mapping[str, str]) -> Iterator[str]:
    for number in itertools.count():
        path = environment.get(bundle_variable(number))
        if not path:
            return
        yield path


def bundle_of(model: torch.nn.Module, bundles: Sequence[Bundle]) -> Bundle:
    """Return the first bundle that was made for a model with these parameters. Without one, raise with the reasons."""
    reasons = []
    for bundle in bundles:
        try:
            parameters_of(model, bundle)
        except OperationError as error:
            reasons.append(str(error))
        else:
            return bundle
    kind = type(model).__name__
    if len(bundles) == 1:
        raise OperationError(
            f"the bundle was not made for this {kind}: {reasons[0]} (where a script trains several models, each has a "
            "bundle: autosync launch FIRST --also SECOND)"
        )
    told = "; ".join(f"bundle {number}: {reason}" for number, reason in enumerate(reasons, start=1))
    raise OperationError(f"none of the {len(bundles)} bundles was made for this {kind}: {told}")


def refuse_shares(bundle: Bundle) -> None:
    """Refuse a strategy that divides the batch unevenly: an unchanged script deals equally many examples to ranks."""
    if not bundle.strategy.shares and not bundle.model.weighs:
        return
    what = "weighs batches" if bundle.model.weighs else f"lets the ranks compute {in_words(bundle.strategy.shares)}"
    raise OperationError(
        f"this bundle {what}, and an unchanged script does not say what its batches weigh (call autosync.parallelize "
        "in the script, with autosync.share_sampler for its batches or autosync.weigh in each step)"
    )


def refuse_state_kept_apart(bundle: Bundle) -> None:
    """Refuse a strategy that spreads the optimizer's state over ranks: scripts read the whole state on one rank."""
    plan = lower(bundle.strategy, bundle.model, bundle.cluster)
    apart = variables_kept_apart(plan, engine_updates(plan).operations)
    if not apart:
        return
    more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
    raise OperationError(
        f"under this bundle the optimizer's state of {min(apart)}{more} is kept at a server or in shards: "
        "optimizer.state_dict() on one rank, as scripts call it, would not have it (take a strategy in which workers "
        "update, as preset ddp or bytescheduler; or call autosync.parallelize and autosync.consolidate in the script)"
    )
