"""What must agree before training starts: model and optimizer with the bundle, and the ranks with one another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.runtime.groups import Groups
from autosync.specs.model import ModelSpec
from autosync.specs.profile_optimizer import optimizer_spec
from autosync.strategy.bundle import Bundle


def parameters_of(model: torch.nn.Module, bundle: Bundle) -> dict[str, torch.nn.Parameter]:
    """The bundle's variables among the model's parameters; the first difference is refused."""
    found = dict(model.named_parameters())
    for difference in _differences(found, bundle.model):
        raise OperationError(f"{difference}; tune this model")
    return {variable.name: found[variable.name] for variable in bundle.model.variables}


def _differences(found: dict[str, torch.nn.Parameter], model: ModelSpec) -> Iterator[str]:
    for variable in model.variables:
        parameter = found.get(variable.name)
        if parameter is None:
            yield f"the model has no parameter {variable.name}, which the bundle synchronises"
        elif tuple(parameter.shape) != variable.shape:
            yield f"{variable.name} has shape {list(parameter.shape)}; the bundle was made for {list(variable.shape)}"
        elif str(parameter.dtype) != f"torch.{variable.dtype}":
            yield f"{variable.name} is {parameter.dtype}; the bundle was made for {variable.dtype}"
        elif not parameter.requires_grad:
            yield f"{variable.name} is frozen; the bundle synchronises it"
        elif parameter.device.type != "cpu":
            yield f"{variable.name} is on {parameter.device}; this engine trains on the CPU"
    known = {variable.name for variable in model.variables}
    untrained = {one.name: one for one in model.untrained}
    for name, parameter in found.items():
        if not parameter.requires_grad or name in known:
            continue
        if name not in untrained:
            yield f"the bundle knows nothing of the trainable parameter {name}"
        elif untrained[name].reason == "frozen":
            yield f"{name} is trainable; in the bundle it is frozen"


def unsynchronised(model: torch.nn.Module, bundle: Bundle) -> dict[str, torch.nn.Parameter]:
    """The parameters that got no gradient when the model was profiled, and so must get none now."""
    names = {one.name for one in bundle.model.untrained if one.reason == "unused"}
    return {name: found for name, found in model.named_parameters() if name in names and found.requires_grad}


def check_optimizer(optimizer: torch.optim.Optimizer, model: ModelSpec) -> None:
    """Refuse another optimizer than the bundle's where pieces of parameters are updated apart."""
    given = optimizer_spec(optimizer)
    if (given.name, given.elementwise) != (model.optimizer.name, model.optimizer.elementwise):
        what = f"the optimizer is {type(optimizer).__module__}.{given.name}"
        raise OperationError(f"{what}; the bundle was made for {model.optimizer.name}")


def check_same_bundle(bundle: Bundle, groups: Groups) -> None:
    """Refuse ranks that were given different bundles, and name what differs."""
    facts = {
        "strategy": bundle.strategy_id,
        "model": bundle.model.fingerprint(),
        "cluster": bundle.cluster.fingerprint(),
    }
    ours = torch.tensor([list(hashlib.sha256(fact.encode()).digest()) for fact in facts.values()], dtype=torch.uint8)
    all_ranks = [torch.empty_like(ours) for _ in range(dist.get_world_size(groups.everyone))]
    dist.all_gather(all_ranks, ours, group=groups.everyone)
    for rank, theirs in enumerate(all_ranks):
        for what, first, other in zip(facts, all_ranks[0], theirs, strict=True):
            if not torch.equal(first, other):
                raise OperationError(f"rank {rank} was given a bundle with another {what} than rank 0")


@torch.no_grad()
def send_state(model: torch.nn.Module, groups: Groups) -> None:
    """Every rank takes rank 0's parameters and buffers, whatever their types and layouts, as bytes."""
    root = groups.name(0)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.numel():
            values = tensor.detach().contiguous().clone()
            dist.broadcast(values.reshape(-1).view(torch.uint8), root, group=groups.everyone)
            tensor.data.copy_(values)
