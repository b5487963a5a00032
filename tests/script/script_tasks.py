"""The scripts of this folder, and tasks to make bundles for them. The scripts themselves do not use autosync."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec
from autosync.specs.profile.run import profile
from autosync.specs.task import Task
from autosync.strategy.bundle import save_bundle
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy

SCRIPTS = Path(__file__).parent / "scripts"
NUM_RANKS = 2

CLUSTER = ClusterSpec(
    name="here",
    nodes=tuple(
        Node(name=f"n{i}", host="localhost", devices=1, bandwidth_out=1e8, bandwidth_in=1e8) for i in range(NUM_RANKS)
    ),
)


def _two_workers(strategy: Strategy) -> Strategy:
    return replace(strategy, input=InputSettings(num_workers=2))


def _overlap_backward(strategy: Strategy) -> Strategy:
    return replace(strategy, overlap="backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A strategy by which scripts are trained."""

    preset: str
    options: dict[str, Any] = field(default_factory=dict)
    change: Callable[[Strategy], Strategy] = lambda strategy: strategy


WAYS: dict[str, Way] = {
    # torch's own reducer; the engine, with the user's optimizer: by servers; the engine with its own updates and
    # overlap with the next forward pass, by all-reduce and by servers; updates in shards and at servers.
    "ddp": Way(preset="ddp"),
    "servers": Way(preset="byteps", change=_overlap_backward),
    "bytescheduler": Way(preset="bytescheduler", options={"slice_bytes": 1024}),
    "byteps": Way(preset="byteps"),
    "fsdp": Way(preset="fsdp"),
    "with_workers": Way(preset="bytescheduler", change=_two_workers),
    # The user's optimizer updates, and parameters are averaged after each second step.
    "local_sgd": Way(preset="local_sgd", options={"every": 2}),
    "ps_load_balanced": Way(preset="ps_load_balanced"),
}


@cache
def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"script_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A script that runs without asking for its name would train here.
    source = (SCRIPTS / f"{name}.py").read_text().removesuffix("\nmain()\n")
    exec(compile(source, str(spec.origin), "exec", dont_inherit=True), module.__dict__)
    return module


@cache
def model_spec(name: str, *, build: str = "build", batch: str = "batch", **more: Any) -> ModelSpec:
    module = _module(name)
    task = Task(
        name=name,
        model=getattr(module, build),
        batch=getattr(module, batch),
        loss=module.loss_of,
        optimizer=module.make_optimizer,
        **more,
    )
    return profile(task, steps=1)


def write_bundle(folder: Path, name: str, way: str, **options: Any) -> Path:
    """Write the bundle by which a script's model is trained; its path."""
    spec, chosen = model_spec(name, **options), WAYS[way]
    path = folder / f"{name}-{options.get('build', 'build')}-{way}.yaml"
    strategy = chosen.change(build_preset(chosen.preset, spec, CLUSTER, **chosen.options))
    save_bundle(path, bundled(strategy, spec, CLUSTER))
    return path
