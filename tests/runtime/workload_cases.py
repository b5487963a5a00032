"""What real ranks are told to do with a model whose gradients are the reference's."""

import contextlib
import random
import time
from typing import Any

import torch
import torch.distributed as dist

from autosync.errors import AutosyncError
from autosync.plan.reference.workload import Workload
from autosync.runtime.parallelize import _session, drain, parallelize, release
from autosync.runtime.session import Session
from autosync.strategy.bundle import load_bundle
from autosync.testing.workload_model import WorkloadModel, workload_optimizer


def session_of(model: WorkloadModel) -> Session:
    found = _session(model)
    assert isinstance(found, Session)
    return found


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
        kept = {name: value.tolist() for name, value in session_of(model).engine_state().items()}
    finally:
        release(model)
    return {"parameters": values, "kept": kept}


def goes_on(bundle: str, num_steps: int) -> str:
    """Half of the steps, the rest in a new session from the states that the first one had: as in one."""
    made = load_bundle(bundle)
    whole = trained(bundle, num_steps)["parameters"]
    workload = Workload(model=made.model)
    model = WorkloadModel(workload, dist.get_rank())
    optimizer = workload_optimizer(model, made.model)
    state = None
    for steps in (range(num_steps // 2), range(num_steps // 2, num_steps)):
        parallelize(model, optimizer, made, timeout_seconds=20, hand_off=False, init_sync=False)
        session = session_of(model)
        if state is not None:
            session.load_engine_state(state)
        for step in steps:
            optimizer.zero_grad()
            model(step).backward()
            optimizer.step()
        state = session.engine_state()
        release(model)
    apart = [name for name, value in model.named_parameters() if value.tolist() != whole[name]]
    return ", ".join(apart)


def refuses_a_state(bundle: str) -> list[str]:
    """States that are not of this plan, or of no step at which parameters were averaged."""
    made = load_bundle(bundle)
    model = WorkloadModel(Workload(model=made.model), dist.get_rank())
    optimizer = workload_optimizer(model, made.model)
    parallelize(model, optimizer, made, timeout_seconds=20, hand_off=False)
    session = session_of(model)
    dist.barrier()
    found = []
    state = session.engine_state()
    name = next(one for one in state if one != "clock")
    less = {key: value for key, value in state.items() if key != name}
    for wrong in (
        less,
        {**state, "more": torch.zeros(1)},
        {**state, name: state[name][:1]},
        {**state, "clock": torch.tensor(1)},
    ):
        try:
            session.load_engine_state(wrong)
            found.append("taken")
        except AutosyncError as error:
            found.append(str(error))
    release(model)
    return found


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
