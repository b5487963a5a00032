"""What `tune` takes for a model and a cluster: a name, as on the command line, or an object.

A study's folder holds names, and its ranks are other processes. So a model spec and a cluster spec are written into the
folder, and a task is given as the function that returns it, which the ranks import by its file and name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autosync.errors import InputError
from autosync.launchers.request import Launcher
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.launchers import LAUNCHERS
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import model_of
from autosync.specs.task import Task

ModelOperand = str | ModelSpec | Callable[[], Task]
ClusterOperand = str | ClusterSpec
LauncherOperand = str | Callable[[], Launcher]


def model_name(model: ModelOperand) -> str:
    """The name of a model in the study's settings: of a function `FILE.py:NAME`."""
    if isinstance(model, str):
        return model
    if isinstance(model, ModelSpec):
        return model.name
    given: object = model
    if isinstance(given, Task):
        rule = "the function that returns the task: ranks are other processes and call it themselves"
        raise InputError("a task object cannot be sent to the ranks", rule=rule)
    file = inspect.getsourcefile(model)
    if file is None or model.__qualname__ != model.__name__:
        rule = "a function at the top of a Python file, which the ranks can import"
        raise InputError(f"{model.__qualname__} cannot be imported by the ranks", rule=rule)
    return f"{Path(file)}:{model.__name__}"


def model_spec_of(model: ModelOperand) -> ModelSpec:
    """The spec of a model; a task is profiled now."""
    return model if isinstance(model, ModelSpec) else model_of(model_name(model))


def cluster_name(cluster: ClusterOperand) -> str:
    """The name of a cluster in the study's settings."""
    return cluster if isinstance(cluster, str) else cluster.name


def cluster_spec_of(cluster: ClusterOperand, launcher: LauncherOperand | None) -> ClusterSpec:
    """The spec of a cluster, with the launcher in place of its own where one is given."""
    spec = load_cluster(cluster) if isinstance(cluster, str) else cluster
    return spec if launcher is None else replace(spec, launcher=LAUNCHERS.name_of(launcher))
