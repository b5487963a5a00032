"""Presets on real ranks, for `preset_matrix.py --run`: every preset on every cluster, compared with its definition.

The ranks are those of `benchmarks/exactness`, launched once for each cluster. The outcome of a preset on a cluster is a
cell: it ran and every rank's parameters are as expected, or it was refused with the reason, or it failed.
"""

from __future__ import annotations

import itertools
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autosync.errors import DoesNotApplyError
from autosync.plan.bundling import bundled
from autosync.plan.lowering import lower
from autosync.runtime.session.support import unsupported
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster, shipped_clusters
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import model_of
from autosync.specs.profile.run import profile
from autosync.strategy.bundle import Bundle
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.pipelines import PIPELINES
from benchmarks.exactness.cases import Case
from benchmarks.exactness.exactness import NoAnswerError, Ranks, problems_of
from benchmarks.exactness.meaning import CAST_TOLERANCE, SIGN_TOLERANCE, TOLERANCE
from benchmarks.exactness.reference import FLOAT64_TOLERANCE
from benchmarks.exactness.tasks import EVERYTHING, task_of
from benchmarks.presets.staged_runs import TARGET, staged_cells
from benchmarks.shared import tell

MAX_HOSTS = 8
NUM_STEPS = 4

# With their defaults these would do nothing, or nearly nothing, in so few steps.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "dgc": {"ratio": 0.01},
    "diloco": {"every": 2},
    "local_sgd": {"every": 2},
}

Cell = dict[str, Any]


def cluster_names() -> list[str]:
    """Return the shipped clusters whose ranks can run on this machine."""
    found = {name: load_cluster(name) for name in shipped_clusters()}
    return [name for name, one in found.items() if one.launcher in ("testbed", "local") and len(one.nodes) <= MAX_HOSTS]


def run_all(presets: Sequence[str], clusters: Sequence[str], limit_seconds: float) -> list[Cell]:
    """Return all cells, cluster by cluster; those that were not begun in time count as failed."""
    deadline = time.monotonic() + limit_seconds
    model = profile(task_of(EVERYTHING, "float64"), times="computed", steps=20)
    staged = [preset for preset in presets if preset in PIPELINES]
    layers = model_of(TARGET, cuts=True) if staged else model
    others = [preset for preset in presets if preset not in PIPELINES]
    cells: list[Cell] = []
    for name in clusters:
        cluster = load_cluster(name)
        found = itertools.chain(
            _on_cluster(others, model, cluster, deadline) if others else (),
            staged_cells(staged, layers, cluster, NUM_STEPS) if staged else (),
        )
        for cell in found:
            cells.append({"cluster": name, **cell})
            tell(f"{name}, {cell['preset']}: {cell['outcome']} {cell.get('why', '')}")
    return cells


def _on_cluster(presets: Sequence[str], model: ModelSpec, cluster: ClusterSpec, deadline: float) -> Iterator[Cell]:
    done: dict[str, Cell] = {}
    ranks = Ranks(cluster, num_steps=NUM_STEPS)
    try:
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
                cell |= _ran(ranks, preset, bundle)
                done[bundle.strategy_id] = {**cell, "seconds": round(time.monotonic() - began, 1)}
                yield done[bundle.strategy_id]
    finally:
        ranks.stop()


def _built(preset: str, model: ModelSpec, cluster: ClusterSpec) -> tuple[Bundle | None, Cell]:
    cell: Cell = {"preset": preset, "options": dict(OPTIONS.get(preset, {}))}
    try:
        strategy = build_preset(preset, model, cluster, **cell["options"])
    except DoesNotApplyError as error:
        why = "; ".join(f"{problem.what} ({problem.rule})" for problem in error.problems)
        # The reason must have the same text on all clusters.
        why = why.replace(cluster.name, "the cluster").replace(model.name, "the model")
        return None, {**cell, "outcome": "refused", "why": why}
    cell["class"] = " and ".join(sorted(strategy.classes))
    if reasons := unsupported(lower(strategy, model, cluster)):
        return None, {**cell, "outcome": "failed", "why": f"the engine does not run it: {reasons[0]}"}
    return bundled(strategy, model, cluster), cell


def _ran(ranks: Ranks, preset: str, bundle: Bundle) -> Cell:
    """Train a preset on the ranks."""
    ranks.begin(
        Case(
            index=0,
            task=EVERYTHING,
            dtype="float64",
            cluster=bundle.cluster.name,
            origin=preset,
            bundle=bundle,
            hand_off=True,
            checks=False,
            state_step=NUM_STEPS - 1,
            eval_step=-1,
            saves_state=False,
            draws=0,
        )
    )
    try:
        answers = ranks.end()
    except NoAnswerError as error:
        return {"outcome": "failed", "why": str(error)}
    if problems := problems_of(answers, bundle.cluster):
        return {"outcome": "failed", "why": problems[0]}
    return {"outcome": "ran", "error_per_tolerance": max(one.worst for one in answers)}


# ------------------------------------------------------------------------------------------------------- the table


def markdown(cells: Sequence[Cell]) -> str:
    """Return the page: the outcomes of each preset with their clusters, and the reasons of refusals."""
    clusters = list(dict.fromkeys(cell["cluster"] for cell in cells))
    classes = {cell["preset"]: cell["class"] for cell in cells if "class" in cell}
    notes: dict[str, int] = {}
    lines = ["| preset | class | outcome |", "| --- | --- | --- |"]
    for preset in dict.fromkeys(cell["preset"] for cell in cells):
        places: dict[str, list[str]] = {}
        for cell in cells:
            if cell["preset"] == preset:
                places.setdefault(_shown(cell, notes), []).append(cell["cluster"])
        outcomes = [f"{shown} on {_named(where, clusters)}" for shown, where in places.items()]
        lines.append(f"| `{preset}` | {classes.get(preset, '–')} | {'; '.join(outcomes)} |")
    reasons = [f"{number}. {why}" for why, number in notes.items()]
    named = textwrap.fill(f"Clusters: {', '.join(clusters)}.", 100, break_on_hyphens=False)
    return "\n".join([_WORDS.strip(), "", named, "", *lines, "", *reasons]) + "\n"


def _named(places: Sequence[str], clusters: Sequence[str]) -> str:
    """Return the clusters by name, or as "all others than" if that is shorter."""
    if len(places) == len(clusters):
        return "all"
    others = [name for name in clusters if name not in places]
    return ", ".join(places) if len(places) <= len(others) else f"all but {', '.join(others)}"


def _shown(cell: Cell, notes: dict[str, int]) -> str:
    if cell["outcome"] == "ran":
        return "exact" if cell["class"] == "exact" else "as meant"
    number = notes.setdefault(cell["why"], len(notes) + 1)
    return f"{'**failed**' if cell['outcome'] == 'failed' else cell['outcome']} ({number})"


def _said(options: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in options.items())


_WORDS = f"""
# Every preset on every cluster

Every preset trained a small model for {NUM_STEPS} steps on every shipped cluster of up to {MAX_HOSTS} hosts, as
processes on one machine. The changes of parameters were compared with training in one process;
those of presets with stages, which train ten layers of their own, with those of stock DDP.

- **exact**: equal to plain training on all batches, within {FLOAT64_TOLERANCE:.0e}.
- **as meant**: different from plain training, but equal to what the preset means (codec, error
  feedback, staleness, averages), within {TOLERANCE:.0e};
  signs within {SIGN_TOLERANCE:.0e}, casts within {CAST_TOLERANCE:.0%}.
- **trained**: trained to the end, with late updates; tests compare it with its own rule.
- **refused**: the preset does not apply; the reasons are below.

Options: {", ".join(f"`{name}` with {_said(options)}" for name, options in OPTIONS.items())}.

`python benchmarks/presets/preset_matrix.py --run --markdown docs/preset-matrix.md` writes
this page.
"""
