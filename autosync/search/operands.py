"""The model and the cluster that `tune` accepts: a name, as on the command line, or an object.

A study's folder holds names, and its ranks are other processes. So a model spec or a cluster spec is written into the
folder. A task is given as the function that returns it, and the ranks import this function by file and name.
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
from autosync.specs.task_file import is_task, load_task

ModelOperand = str | ModelSpec | Callable[[], Task]
ClusterOperand = str | ClusterSpec
LauncherOperand = str | Callable[[], Launcher]


def model_name(model: ModelOperand) -> str:
    """Return the name of a model in the study's settings; for a function, `FILE.py:NAME`."""
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


def model_spec_of(model: ModelOperand, cluster: ClusterSpec, *, cuts: bool = False) -> ModelSpec:
    """Return the spec of a model. A task is profiled in this call, on the kind of device on which ranks train it.

    With `cuts`, the profile has what strategies with stages need. If the task has a dataset, its input is measured too.
    """
    spec = model if isinstance(model, ModelSpec) else model_of(model_name(model), device=cluster.device_type, cuts=cuts)
    if not is_task(model_name(model)):
        # A replay reads no examples.
        return replace(spec, input=None) if spec.input is not None and spec.input.by_loader else spec
    task = load_task(model_name(model))
    if not task.reads_dataset:
        return spec
    # This import loads torch.
    from autosync.inputs.task_input import with_input

    return with_input(spec, task)[0]


def cluster_name(cluster: ClusterOperand) -> str:
    """Return the name of a cluster in the study's settings."""
    return cluster if isinstance(cluster, str) else cluster.name


def cluster_spec_of(cluster: ClusterOperand, launcher: LauncherOperand | None) -> ClusterSpec:
    """Return the spec of a cluster, with `launcher` in place of its own launcher if one is given."""
    spec = load_cluster(cluster, is_run=launcher is None) if isinstance(cluster, str) else cluster
    return spec if launcher is None else replace(spec, launcher=LAUNCHERS.name_of(launcher))
