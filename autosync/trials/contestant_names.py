"""Finds the contestants of a comparison by the names that users give: strategy files, bundles, presets, torch-ddp."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autosync import documents
from autosync.errors import DoesNotApplyError, InputError, Problem
from autosync.plan.bundling import bundled
from autosync.plan.lowering import lower
from autosync.runtime.session.support import unsupported
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.bundle import Bundle, load_bundle
from autosync.strategy.emit.settings import as_it_ships
from autosync.strategy.files import is_bundle, load_strategy, load_strategy_for
from autosync.strategy.names import check_strategy_names
from autosync.strategy.presets import build_preset, preset_names
from autosync.strategy.presets.pipelines import PIPELINES
from autosync.trials.contestant import Contestant

TORCH_DDP = "torch-ddp"
"""The name of stock DDP, which is no strategy of ours."""


def contestants_by_name(
    names: Sequence[str], model: ModelSpec, cluster: ClusterSpec, *, is_replayed: bool
) -> tuple[Contestant, ...]:
    """Return the contestants of these names; all mistakes are reported at once.

    A name that is given twice becomes `NAME#2` the second time. `is_replayed`: whether the model's compute is replayed
    from its spec.
    """
    problems: list[Problem] = []
    found: list[Contestant] = []
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        label = name if seen[name] == 1 else f"{name}#{seen[name]}"
        try:
            found.append(_contestant(name, label, model, cluster, is_replayed=is_replayed))
        except InputError as error:
            problems.extend(problem for problem in error.problems if problem not in problems)
    if problems:
        raise InputError(problems)
    return tuple(found)


def check_names(names: Sequence[str]) -> None:
    """Raise InputError for names that are neither files nor known names, before other work takes time."""
    check_strategy_names(names, what="contestant", others=(TORCH_DDP,))


def have_stages(names: Sequence[str]) -> bool:
    """Whether any contestant divides the model into stages."""
    if any(name in PIPELINES for name in names):
        return True
    files = [name for name in names if name != TORCH_DDP and name not in preset_names()]
    return any(load_strategy(name)[0].stages for name in files)


def _contestant(name: str, label: str, model: ModelSpec, cluster: ClusterSpec, *, is_replayed: bool) -> Contestant:
    if name == TORCH_DDP:
        return Contestant(name=label, ddp=as_it_ships(model, is_replayed=is_replayed))
    if name not in preset_names():
        bundle = _bundle_of_file(name, model, cluster)
    else:
        bundle = bundled(build_preset(name, model, cluster), model, cluster)
    reasons = unsupported(lower(bundle.strategy, model, cluster))
    if reasons:
        rule = "what the engine does not run is not measured"
        raise DoesNotApplyError([Problem(what=f"{name} cannot run: {reason}", rule=rule) for reason in reasons])
    return Contestant(name=label, bundle=bundle)


def _bundle_of_file(name: str, model: ModelSpec, cluster: ClusterSpec) -> Bundle:
    if is_bundle(documents.read_document(name)):
        bundle = load_bundle(name)
        try:
            bundle.check(model, cluster)
        except DoesNotApplyError as error:
            raise error.located(name, 1) from error
        return bundle
    return bundled(load_strategy_for(name, model, cluster), model, cluster)
