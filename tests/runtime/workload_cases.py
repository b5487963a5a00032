"""What real ranks are told to do with a model whose gradients are the reference's."""

import contextlib
import random
import time
from typing import Any

import torch
import torch.distributed as dist

from autosync.errors import AutosyncError
from autosync.plan.reference.workload import Workload
from autosync.runtime.parallelize import drain, parallelize, release, session_of
from autosync.strategy.bundle import load_bundle
from tests.helpers.workload_model import WorkloadModel, workload_optimizer


def trained(bundle: str, num_steps: int) -> dict[str, Any]:
    """Parameters after some steps, which take each rank now longer and now shorter; and what its engine keeps."""
    made = load_bundle(bundle)
    rank, rng = dist.get_rank(), random.Random(dist.get_rank())
    model = WorkloadModel(Workload(model=made.model), rank)
    optimizer = workload_optimizer(model, made.model)
    parallelize(model, optimizer, made, timeout_seconds=20, hand_off=False)
    try:
        for step in range(num_steps):
            optimizer.zero_grad()
            loss = model(step)
            time.sleep(rng.choice((0, 0, 0.01)))
            loss.backward()
            if made.model.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), made.model.clip_norm)
            optimizer.step()
        drain(model)
        values = {name: value.detach().tolist() for name, value in model.named_parameters()}
        session = session_of(model)
        execution = session.training.execution
        assert execution is not None, "it is not handed off"
        kept = {f"{held.what} {held.place}": held.values.tolist() for held in execution.kept(session.step)}
    finally:
        release(model)
    return {"parameters": values, "kept": kept}


def not_a_number(bundle: str) -> str:
    """One rank's gradient has a NaN."""
    made = load_bundle(bundle)
    rank = dist.get_rank()
    model = WorkloadModel(Workload(model=made.model), rank)
    optimizer = workload_optimizer(model, made.model)
    parallelize(model, optimizer, made, timeout_seconds=5, hand_off=False)
    try:
        for step in range(3):
            optimizer.zero_grad()
            loss = model(step)
            if step == 1 and rank == 1:
                loss = loss + model.get_parameter("linear")[1, 2] * float("nan")
            loss.backward()
            optimizer.step()
        drain(model)
    except AutosyncError as error:
        return str(error)
    finally:
        with contextlib.suppress(AutosyncError):
            release(model)
    return "nothing raised"


def idles(bundle: str, seconds: float) -> str:
    """Between two steps passes more time than anybody may be late within one."""
    made = load_bundle(bundle)
    model = WorkloadModel(Workload(model=made.model), dist.get_rank())
    optimizer = workload_optimizer(model, made.model)
    parallelize(model, optimizer, made, timeout_seconds=seconds / 2, hand_off=False)
    try:
        for step in range(4):
            time.sleep(seconds if step == 2 else 0)
            optimizer.zero_grad()
            model(step).backward()
            optimizer.step()
    finally:
        release(model)
    return ""


def accumulates_twice(bundle: str) -> str:
    """A second backward pass before the step where something follows the step."""
    made = load_bundle(bundle)
    model = WorkloadModel(Workload(model=made.model), dist.get_rank())
    parallelize(model, workload_optimizer(model, made.model), made, timeout_seconds=20, hand_off=False)
    # Who ends at once would else be gone before the other has connected.
    dist.barrier()
    try:
        model(0).backward()
        model(0).backward()
    except AutosyncError as error:
        return str(error)
    finally:
        release(model)
    return "nothing raised"
