"""Decides whether the engine can run a plan. Other plans are refused before training starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.plan.types import Local, Plan
from autosync.runtime.engine.device import DevicePlacement
from autosync.strategy.codecs import TopK

# Top-k sends positions as four-byte numbers.
_MOST_ELEMENTS = 2**31 - 1


def unsupported(plan: Plan) -> list[str]:
    """Return the reasons why the engine cannot run a plan; none if it can."""
    return list(dict.fromkeys(_reasons(plan)))


def refuse_unsupported(plan: Plan) -> None:
    """Refuse a plan that the engine cannot run behind a script's own passes."""
    if plan.stages:
        raise OperationError(
            "the bundle divides the model into stages, and a pipeline cannot live behind loss.backward(): "
            "autosync.trainer(task, bundle) trains with it"
        )
    reasons = unsupported(plan)
    if reasons:
        raise OperationError("this engine does not run the strategy: " + "; ".join(reasons[:3]))


def _reasons(plan: Plan) -> Iterator[str]:
    if plan.backend not in ("gloo", "nccl"):
        yield f"the backend is {plan.backend}; the engine runs on gloo and on NCCL"
    for operation in plan.operations:
        if isinstance(operation, Local) and isinstance(operation.settings, TopK):
            for region in operation.inputs:
                num_elements = plan.regions[region].num_elements
                if operation.kind == "encode" and num_elements > _MOST_ELEMENTS:
                    name = plan.parts[plan.regions[region].part].name
                    yield f"{name} has {num_elements} elements, and top_k numbers no more than {_MOST_ELEMENTS}"


def refuse_placement(placement: DevicePlacement, parameters: Mapping[str, torch.Tensor], *, checks: bool) -> None:
    """Refuse parameters on devices where the engine cannot work, and settings that the backend cannot follow."""
    device = placement.device
    for name, parameter in parameters.items():
        if parameter.device != device:
            first = next(iter(parameters))
            raise OperationError(
                f"{name} is on {parameter.device} and {first} on {device}: all parameters of a rank must be on one "
                "device (a model that is spread over several needs an engine for pipelines)"
            )
    if device.type not in ("cpu", "cuda"):
        raise OperationError(f"the parameters are on {device}; the engine trains on the CPU and on CUDA devices")
    if placement.natives != "nccl":
        return
    if device.type != "cuda":
        raise OperationError(f"the parameters are on {device}; NCCL, the cluster's backend, needs them on a GPU")
    if not dist.is_nccl_available():
        raise OperationError(
            f"torch {torch.__version__} was built without NCCL, the cluster's backend (install a build for CUDA, or "
            "tune for a cluster with backend: gloo, which takes parameters on a GPU too)"
        )
    if checks:
        raise OperationError("checks: what NCCL transfers has no headers, so nothing can be checked (leave them out)")
