"""Real ranks to whom examples are dealt by cost train as one process does on the global batch."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosync.plan.bundling import bundled
from autosync.specs.graph_batching import GraphBatching
from autosync.specs.profile.run import profile
from autosync.specs.task_file import load_task
from autosync.strategy.bundle import save_bundle
from autosync.strategy.presets import build_preset

HERE = Path(__file__).parent

TRAINED = [
    ("examples", "ddp", GraphBatching(order="agenda", lazy_weights=True, dealing="cost")),
    ("examples", "sharded", GraphBatching(order="depth", dealing="cost")),
    ("examples", "p3", GraphBatching(order="agenda")),
    ("vertices", "bytescheduler", GraphBatching(order="depth", lazy_weights=True, dealing="cost")),
    ("vertices", "ddp", GraphBatching(order="agenda", dealing="cost")),
    ("vertices", "ddp", None),
]


@pytest.mark.timeout(200)
def test_dealt_examples_train_as_one_process_does(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("unequal")
    cases: list[tuple[str, dict[str, Any]]] = []
    wanted = []
    models = {
        name: profile(load_task(f"{HERE / 'graph_tasks.py'}:{name}"), steps=1) for name in ("examples", "vertices")
    }
    for number, (task, preset, batching) in enumerate(TRAINED):
        model = models[task]
        strategy = replace(build_preset(preset, model, ranks.cluster), batching=batching)
        path = str(ranks.folder / f"{number}.yaml")
        save_bundle(path, bundled(strategy, model, ranks.cluster))
        cases.append(("graph_cases:trained", {"name": task, "bundle": path}))
        lazy = ", lazy weights" if batching is not None and batching.lazy_weights else ""
        wanted.append(f"under {'depth' if batching is None else batching.order}{lazy}")
    cases.append(("graph_cases:refused", {"bundle": cases[0][1]["bundle"]}))
    for answers in ranks.run(cases):
        assert answers[:-1] == wanted
        assert "this model has no VertexModel" in answers[-1]
