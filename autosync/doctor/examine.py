"""The whole doctor in one function: it watches stock DDP, measures the links if they matter, and diagnoses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from autosync.doctor.diagnosis import LEAST_SHARE, Diagnosis, diagnose
from autosync.doctor.evidence import Evidence
from autosync.doctor.gain import Gain, gain_of_model, gain_of_script
from autosync.doctor.gathering import Watched, gather
from autosync.doctor.links import link_rates
from autosync.doctor.timing import timing_of
from autosync.errors import AutosyncError, InputError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import save_model
from autosync.specs.task_file import is_task


def examine(
    cluster: ClusterSpec,
    *,
    target: str | None = None,
    model: ModelSpec | None = None,
    script: Sequence[str] = (),
    num_steps: int,
    seconds: float,
    probes: bool,
    folder: Path,
    progress: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Return the diagnosis of a task or model spec (`target`, with its `model`), or of a script with its arguments.

    With `probes`, the links are measured if waiting for transfers takes a considerable share of the step.
    """
    if target is not None:
        refuse_gpus(target, cluster)
    watched = _watched(target, model, script, folder)
    evidence = gather(cluster, watched, num_steps=num_steps, seconds=seconds, folder=folder, progress=progress)
    evidence, measured = _with_links(evidence, cluster, probes=probes, progress=progress)
    return diagnose(evidence, gain=_gain(evidence, measured, target, model))


def refuse_gpus(target: str, cluster: ClusterSpec) -> None:
    """Refuse a task or model spec on a cluster whose ranks train on GPUs."""
    if cluster.device_type == "cuda":
        raise InputError(
            f"{target} on {cluster.name}, whose backend is nccl",
            rule="doctor watches training on CPUs",
            hint="a cluster file with backend: gloo trains there",
        )


def _gain(evidence: Evidence, cluster: ClusterSpec, target: str | None, model: ModelSpec | None) -> Gain:
    if target is None or model is None:
        return gain_of_script(evidence, cluster)
    return gain_of_model(evidence, model, cluster, is_replayed=not is_task(target))


def _watched(target: str | None, model: ModelSpec | None, script: Sequence[str], folder: Path) -> Watched:
    if target is None:
        words = tuple(script)
        if not words or not (words[0].endswith(".py") or words[0] == "-m"):
            raise InputError(
                f"{words[0] if words else 'nothing'} is no script", rule="after --: train.py ARGS, or -m MODULE ARGS"
            )
        return Watched(command=words)
    if is_task(target):
        return Watched(task=target)
    assert model is not None, "a target that is no task is a model spec"
    path = folder / "model.yaml"
    save_model(model, path)
    return Watched(model_file=path)


def _with_links(
    evidence: Evidence, cluster: ClusterSpec, *, probes: bool, progress: Callable[[str], None]
) -> tuple[Evidence, ClusterSpec]:
    """Return the evidence with the rates of the links, and the cluster that these rates belong to."""
    if len(cluster.nodes) < 2:
        return evidence, cluster
    timing = timing_of(evidence)
    matters = timing.exposed >= LEAST_SHARE * timing.step_seconds
    if not (probes and matters):
        return replace(evidence, links=link_rates(cluster), doubt=_unprobed(probes=probes)), cluster
    from autosync.trials.probe import probe
    from autosync.trials.probe.request import of_links_alone

    progress("measuring the links")
    try:
        probed = probe(cluster, settings=of_links_alone(len(cluster.nodes)))
    except AutosyncError as error:
        doubt = f"the links could not be measured: {error}"
        return replace(evidence, links=link_rates(cluster), doubt=doubt), cluster
    if any(one.kind == "busy" for one in probed.findings):
        # The links of a testbed run on these processors, so a busy processor slows the measured links.
        doubt = "these processors were too busy for the links to be measured"
        return replace(evidence, links=link_rates(cluster), doubt=doubt), cluster
    wrong = tuple((one.subject, one.message) for one in probed.findings if one.kind == "interface")
    links = link_rates(probed.cluster)
    return replace(evidence, links=links, is_probed=True, wrong_interfaces=wrong), probed.cluster


def _unprobed(*, probes: bool) -> str:
    if not probes:
        return "--no-probe was given, so the links were not measured"
    return "transfers cost too little of the step for the links to be measured"
