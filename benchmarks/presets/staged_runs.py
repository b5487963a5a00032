"""Presets with stages on real ranks: they train beside stock DDP on the same examples, to the same parameters."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autosync.errors import AutosyncError, DoesNotApplyError
from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset
from autosync.trials.contestant import Contestant
from autosync.trials.service import TrialService
from benchmarks.exactness.reference import FLOAT64_TOLERANCE

TARGET = f"{Path(__file__).with_name('staged_task.py')}:task"
"""The presets' own task: that of the others has sparse gradients, which stages refuse."""
STOCK = "stock DDP"


def staged_cells(presets: Sequence[str], model: ModelSpec, cluster: ClusterSpec, num_steps: int) -> Iterator[Any]:
    """Yield the cells of presets with stages on a cluster. `model` is the task's profile, with cuts."""
    built = {}
    for preset in presets:
        try:
            built[preset] = bundled(build_preset(preset, model, cluster), model, cluster)
        except DoesNotApplyError as error:
            why = "; ".join(f"{problem.what} ({problem.rule})" for problem in error.problems)
            why = why.replace(cluster.name, "the cluster").replace(model.name, "the model")
            yield {"preset": preset, "options": {}, "outcome": "refused", "why": why}
    if not built:
        return
    with (
        tempfile.TemporaryDirectory(prefix="presets-") as folder,
        TrialService(target=TARGET, model=model, cluster=cluster, folder=Path(folder)) as service,
    ):
        for preset, bundle in built.items():
            cell = {"preset": preset, "options": {}, "class": "exact"}
            try:
                for one in (Contestant(name=STOCK), Contestant(name=preset, bundle=bundle)):
                    service.prepare(one)
                    service.run(one.name, num_steps)
                apart = service.difference(STOCK, preset)
                for name in (STOCK, preset):
                    service.release(name)
            except AutosyncError as error:
                yield {**cell, "outcome": "failed", "why": str(error)}
                continue
            is_exact = apart <= FLOAT64_TOLERANCE
            why = {} if is_exact else {"why": f"its parameters are {apart:.1e} of their change from stock DDP's"}
            outcome = "ran" if is_exact else "failed"
            yield {**cell, "outcome": outcome, **why, "error_per_tolerance": apart / FLOAT64_TOLERANCE}
