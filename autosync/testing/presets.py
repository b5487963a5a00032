"""Checks that a preset keeps its contract on any model and cluster; for our presets and those of third parties.

The strategy that a preset builds is legal, can be written to YAML and JSON and read back unchanged, and can be lowered
to a plan. If the preset does not apply, it gives the reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping
from typing import Any

from autosync import documents
from autosync.errors import DoesNotApplyError
from autosync.plan.lowering import lower
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.files import dump_strategy, parse_strategy
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy


def check_preset(
    name: str,
    model: ModelSpec,
    cluster: ClusterSpec,
    *,
    known: MutableMapping[str, Strategy] | None = None,
    **options: Any,
) -> Strategy:
    """Build a strategy with the preset, check it, and return it; raise AssertionError if a check fails.

    If the preset does not apply, its `DoesNotApplyError` is raised for the caller to handle, after a check that the
    error has a reason and a rule and names the preset.

    `known` has the strategies that earlier calls read back from files, by what was in the files: the same is not read
    again.
    """
    try:
        strategy = build_preset(name, model, cluster, **options)
    except DoesNotApplyError as error:
        for problem in error.problems:
            assert problem.what, f"{name} does not say why it does not apply"
            assert problem.rule, f"{name} does not say which rule refuses {problem.what}"
            assert problem.path[:2] == ("preset", name), f"{problem} does not name the preset {name}"
        raise
    found = legality.problems(strategy, model, cluster)
    assert not found, f"{name} builds what is not legal: {found[0]}"
    _check_files(name, strategy, {} if known is None else known)
    lower(strategy, model, cluster)
    return strategy


def _check_files(name: str, strategy: Strategy, known: MutableMapping[str, Strategy]) -> None:
    """Check that a strategy comes back from both forms of a file as it was."""
    fields = dump_strategy(strategy)
    as_json = documents.format_json(fields)
    key = hashlib.sha256(as_json.encode()).hexdigest()
    if key in known:
        assert known[key] == strategy, f"{name} writes a file that reads back as another strategy"
        return
    for file, text in (("s.yaml", documents.format_yaml(fields)), ("s.json", as_json)):
        read = parse_strategy(documents.parse_document(text, file=file))
        assert read == strategy, f"{name} reads back from {file} as another strategy"
    known[key] = strategy
