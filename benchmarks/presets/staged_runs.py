"""Presets with stages on real ranks: they train beside stock DDP on the same examples.

Exact ones must end with the same parameters. Those without a flush train by a rule of their own, with which
`tests/runtime/test_stages.py` compares them; here they must train to the end.
"""

from __future__ import annotations

import math
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
_NOT_LATE = "its parameters are those of stock DDP, or none at all, though its updates are late"
_OF_TESTS = "stages without a flush are compared with their own rule by tests/runtime/test_stages.py"


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
            cell = {"preset": preset, "options": {}, "class": " and ".join(sorted(bundle.strategy.classes))}
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
            yield {**cell, **_outcome(apart, is_exact=bundle.strategy.is_exact)}


def _outcome(apart: float, *, is_exact: bool) -> dict[str, Any]:
    """Return the outcome of a training whose parameters are this far from those of stock DDP."""
    if not is_exact:
        # Equal parameters would show that updates were not late.
        is_late = FLOAT64_TOLERANCE < apart < math.inf
        return {"outcome": "trained", "why": _OF_TESTS} if is_late else {"outcome": "failed", "why": _NOT_LATE}
    error = {"error_per_tolerance": apart / FLOAT64_TOLERANCE}
    if apart <= FLOAT64_TOLERANCE:
        return {"outcome": "ran", **error}
    return {"outcome": "failed", "why": f"its parameters are {apart:.1e} of their change from stock DDP's", **error}
