"""Presets on real ranks, for `preset_matrix.py --run`: every preset on every cluster, held against what it means.

The ranks of a cluster start once and take preset after preset. What came of a preset on a cluster is a cell: it ran
and every rank's parameters are those that are meant, or it is refused with the reason, or it failed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from preset_meaning import SEED, Values, initial_values, meant
from preset_task import FOLDER, NUM_STEPS, task
from wire_cases import bundled

from autosync.errors import AutosyncError, DoesNotApplyError
from autosync.plan.lowering import lower
from autosync.runtime.support import unsupported
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster, shipped_clusters
from autosync.specs.model import ModelSpec
from autosync.specs.profile import profile
from autosync.strategy.bundle import Bundle
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Cast, Sign, Strategy
from autosync.trials.service import Contestant, TrialService

MAX_HOSTS = 8
TIMEOUT_SECONDS = 60.0
TASK = Path(__file__).with_name("preset_task.py")

# What would do nothing within the few steps that are made here, or nearly nothing.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "dgc": {"ratio": 0.01},
    "diloco": {"every": 2},
    "local_sgd": {"every": 2},
}

# By the norm of what training changed in each variable.
TOLERANCE = 1e-10
CAST_TOLERANCE = 2e-2
"""What is meant by a cast says nothing of the rounding of sums on the wire."""
SIGN_TOLERANCE = 1e-6
"""Means are summed in some order and told in float32."""

Cell = dict[str, Any]


def cluster_names() -> list[str]:
    """The shipped clusters that this machine can be."""
    found = {name: load_cluster(name) for name in shipped_clusters()}
    return [name for name, one in found.items() if one.launcher in ("testbed", "local") and len(one.nodes) <= MAX_HOSTS]


def run_all(presets: Sequence[str], clusters: Sequence[str], limit_seconds: float) -> list[Cell]:
    """All cells, cluster by cluster; those that were not begun in time have failed."""
    deadline = time.monotonic() + limit_seconds
    model = profile(task(), times="computed", steps=20)
    start = initial_values()
    cells: list[Cell] = []
    for name in clusters:
        cluster = load_cluster(name)
        for cell in _on_cluster(presets, model, cluster, start, deadline):
            cells.append({"cluster": name, **cell})
            print(f"{name}, {cell['preset']}: {cell['outcome']} {cell.get('why', '')}", file=sys.stderr, flush=True)
    return cells


def _on_cluster(
    presets: Sequence[str], model: ModelSpec, cluster: ClusterSpec, start: Values, deadline: float
) -> Iterator[Cell]:
    done: dict[str, Cell] = {}
    with tempfile.TemporaryDirectory(prefix="autosync-presets-") as folder:
        # The ranks have it from here.
        os.environ[FOLDER] = folder
        service = TrialService(
            target=str(TASK),
            model=model,
            cluster=cluster,
            folder=Path(folder),
            seed=SEED,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        with service:
            for preset in presets:
                bundle, cell = _built(preset, model, cluster)
                if bundle is None:
                    yield cell
                elif bundle.strategy_id in done:
                    first = done[bundle.strategy_id]
                    yield {**first, **cell, "seconds": 0.0, "same_as": first["preset"]}
                elif time.monotonic() > deadline:
                    yield {**cell, "outcome": "failed", "why": "not begun in time"}
                else:
                    began = time.monotonic()
                    cell |= _ran(service, bundle, Path(folder), start)
                    done[bundle.strategy_id] = {**cell, "seconds": round(time.monotonic() - began, 1)}
                    yield done[bundle.strategy_id]


def _built(preset: str, model: ModelSpec, cluster: ClusterSpec) -> tuple[Bundle | None, Cell]:
    cell: Cell = {"preset": preset, "options": dict(OPTIONS.get(preset, {}))}
    try:
        strategy = build_preset(preset, model, cluster, **cell["options"])
    except DoesNotApplyError as error:
        why = "; ".join(f"{problem.what} ({problem.rule})" for problem in error.problems)
        # The reason is to be the same wherever it is.
        why = why.replace(cluster.name, "the cluster").replace(model.name, "the model")
        return None, {**cell, "outcome": "refused", "why": why}
    cell["class"] = " and ".join(sorted(strategy.classes))
    if reasons := unsupported(lower(strategy, model, cluster)):
        return None, {**cell, "outcome": "failed", "why": f"the engine does not run it: {reasons[0]}"}
    return bundled(strategy, model, cluster), cell


def _ran(service: TrialService, bundle: Bundle, folder: Path, start: Values) -> Cell:
    """Train a preset on the ranks, and hold what they have against what is meant."""
    for file in folder.glob("*.npz"):
        file.unlink()
    name = bundle.strategy.name
    try:
        service.prepare(Contestant(name=name, bundle=bundle))
        service.run(name, NUM_STEPS)
        service.run(name, 1)  # at whose beginning parameters are left for us
        service.release(name)
        found = [_read(folder / f"rank-{rank}.npz") for rank in range(bundle.cluster.num_workers)]
    except (AutosyncError, OSError) as error:
        return {"outcome": "failed", "why": f"{type(error).__name__}: {error}"}
    plan = lower(bundle.strategy, bundle.model, bundle.cluster)
    numbers = {part.variable.name: index for index, part in enumerate(plan.parts)}
    expected = meant(bundle.strategy, len(found), numbers)
    exact = meant(None, len(found), numbers)
    tolerance = _tolerance(bundle.strategy)
    off, off_exact = _far(found, expected, start), _far(found, exact, start)
    cell: Cell = {"off": off, "off_exact": off_exact, "tolerance": tolerance}
    if not off <= tolerance:
        return {**cell, "outcome": "failed", "why": f"off by {off:.1e} of what training changes ({tolerance:.0e})"}
    if not bundle.strategy.is_exact and off_exact <= TOLERANCE:
        return {**cell, "outcome": "failed", "why": "it came out as exact training does, which it is not"}
    return {**cell, "outcome": "ran"}


def _read(path: Path) -> Values:
    with np.load(path) as values:
        return {name: values[name] for name in values.files}


def _tolerance(strategy: Strategy) -> float:
    codecs = [message.codec for message in strategy.messages]
    if any(isinstance(codec, Cast) for codec in codecs):
        return CAST_TOLERANCE
    return SIGN_TOLERANCE if any(isinstance(codec, Sign) for codec in codecs) else TOLERANCE


def _far(found: Sequence[Values], expected: Sequence[Values], start: Values) -> float:
    """The largest error of any rank's variable, as a share of what training changed in it."""
    return max(
        float(np.linalg.norm(ours[name] - theirs[name]) / np.linalg.norm(theirs[name] - start[name]))
        for ours, theirs in zip(found, expected, strict=True)
        for name in start
    )


# ------------------------------------------------------------------------------------------------------- the table


def markdown(cells: Sequence[Cell]) -> str:
    """The page: presets by clusters, with the reasons of refusals below."""
    clusters = list(dict.fromkeys(cell["cluster"] for cell in cells))
    classes = {cell["preset"]: cell["class"] for cell in cells if "class" in cell}
    by_place = {(cell["preset"], cell["cluster"]): cell for cell in cells}
    notes: dict[str, int] = {}
    rows = []
    for preset in dict.fromkeys(cell["preset"] for cell in cells):
        shown = [_shown(by_place[preset, cluster], notes) for cluster in clusters]
        rows.append([f"`{preset}`", classes.get(preset, "–"), *shown])
    header = ["preset", "class", *clusters]
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    reasons = [f"{number}. {why}" for why, number in notes.items()]
    return "\n".join([*_WORDS.strip().splitlines(), "", *lines, "", *reasons]) + "\n"


def _shown(cell: Cell, notes: dict[str, int]) -> str:
    if cell["outcome"] == "ran":
        return "exact" if cell["class"] == "exact" else "as meant"
    number = notes.setdefault(cell["why"], len(notes) + 1)
    return f"{'refused' if cell['outcome'] == 'refused' else '**failed**'} ({number})"


def _said(options: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in options.items())


_WORDS = f"""
# Every preset on every cluster

Generated by `python benchmarks/preset_matrix.py --run --markdown docs/preset-matrix.md`: every preset on real ranks of
every shipped cluster of up to {MAX_HOSTS} hosts (`local-2` on this machine, the others on the testbed),
{NUM_STEPS} steps of a convolution, a table with sparse gradients and linear layers by SGD in float64. Each
rank's parameters are held against training in one process, by the norm of what training changed in each variable.

- **exact**: those of plain training on all batches, within {TOLERANCE:.0e}.
- **as meant**: those that the preset's class means: codecs with their error feedback and momentum, staleness, averages,
  outer steps, worked out without plan or engine. Within {TOLERANCE:.0e}; with signs within {SIGN_TOLERANCE:.0e}; with
  casts, of which the sums are rounded on the wire, within {CAST_TOLERANCE:.0%}. And not those of plain training.
- **refused**: the preset does not apply; the reasons are below.

Run with options: {", ".join(f"`{name}` with {_said(options)}" for name, options in OPTIONS.items())}.
"""
