"""Checks before training starts: model and optimizer must fit the bundle, and all ranks must agree."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from autosync import __version__, jsonio
from autosync.errors import AutosyncError, OperationError
from autosync.plan.expansion import expand
from autosync.plan.types import Plan
from autosync.runtime.local.engine_updates import engine_updates
from autosync.runtime.local.joint_optimizer import members_of, refuse_held_elsewhere, refuse_shared
from autosync.runtime.memory.byte_views import as_bytes
from autosync.runtime.session.hooks import takes_hooks
from autosync.runtime.wire.exchange import Exchange
from autosync.runtime.wire.flow_control import Flow
from autosync.runtime.wire.links import Links, said
from autosync.runtime.wire.transfer_pieces import cut_moves
from autosync.specs.model import ModelSpec
from autosync.specs.profile.optimizer import optimizer_spec
from autosync.specs.profile.optimizer_trial import try_out
from autosync.strategy.bundle import Bundle

SAME = "same"
"""The verdict that the ranks agree and may train together."""
VERDICT = "verdict"
REFUSAL = "refusal"
"""The key under which a rank's facts give its reason not to take part."""
MARGIN = dt.timedelta(seconds=10)
"""Rank 0 waits for the facts of all ranks. The others wait for its verdict, longer by this margin."""
STATE_TAG = 2**29
"""The tag of the messages that distribute the initial values; no operation of a plan has this number."""


def parameters_of(model: torch.nn.Module, bundle: Bundle) -> dict[str, torch.nn.Parameter]:
    """Return the model's parameters for the bundle's variables; refuse a model that differs from the bundle's."""
    if not takes_hooks(model):
        raise OperationError(
            "the model itself is a scripted module, on which torch puts no hooks (script the modules within it, or "
            "wrap it: torch.nn.Sequential(model))"
        )
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
    """Return the parameters that got no gradient when the model was profiled, and so must get none now."""
    names = {one.name for one in bundle.model.untrained if one.reason == "unused"}
    return {
        name: found
        for name, found in model.named_parameters()
        # Older files call variables without elements unused.
        if name in names and found.requires_grad and found.numel()
    }


def check_optimizers(
    optimizer: torch.optim.Optimizer, model: ModelSpec, plan: Plan, parameters: Mapping[str, torch.nn.Parameter]
) -> None:
    """If the engine updates, refuse optimizers that differ from the bundle's or that the engine cannot replace."""
    engines = engine_updates(plan).variables
    if not engines:
        return
    for member in members_of(optimizer):
        _check_optimizer(member, model, plan, parameters)
    ours = {name: parameter for name, parameter in parameters.items() if name in engines}
    refuse_shared(optimizer, ours)
    refuse_held_elsewhere(optimizer, ours)
    if model.loss_scaling and len(members_of(optimizer)) > 1:
        raise OperationError(
            "several optimizers in a task that scales its loss, where the engine updates: a scaler leaves out the step "
            "of one of them and not of another (strategies in which the user's optimizers update, as preset ddp, take "
            "them)"
        )


def _check_optimizer(
    optimizer: torch.optim.Optimizer, model: ModelSpec, plan: Plan, parameters: Mapping[str, torch.nn.Parameter]
) -> None:
    given, wanted = optimizer_spec(optimizer, parameters.values()), model.optimizer
    what = f"the optimizer is {type(optimizer).__module__}.{given.name}"
    is_elementwise = given.elementwise or not wanted.elementwise
    applies = given.updates_apart or plan.overlap != "forward"
    if given.name == wanted.name and not (is_elementwise and applies):
        reason = try_out(optimizer, parameters.values()).reason or "its class is not that of torch.optim"
        raise OperationError(
            f"{what}, and the engine, which updates under this bundle, would not update as it does: {reason} "
            "(strategies in which the user's optimizer updates, as preset ddp, take it)"
        )
    if (given.name, given.elementwise) != (wanted.name, wanted.elementwise):
        raise OperationError(f"{what}; the bundle was made for {wanted.name}")


def facts_of_rank(bundle: Bundle) -> Mapping[str, str]:
    """Return the facts that must be the same on all ranks."""
    return {
        "strategy": bundle.strategy_id,
        "model": bundle.model.fingerprint(),
        "cluster": bundle.cluster.fingerprint(),
        "torch": torch.__version__,
        "autosync": __version__,
    }


def layouts_of(parameters: Mapping[str, torch.nn.Parameter]) -> Mapping[str, str]:
    """Return the strides of parameters, which must agree: torch's reducer sums gradients in memory order."""
    others = {name: parameter.stride() for name, parameter in parameters.items() if not parameter.is_contiguous()}
    return {"strides of parameters": json.dumps(others) if others else "those of contiguous tensors"}


@contextlib.contextmanager
def refusal_told(store: Any, *, rank: int) -> Iterator[None]:
    """Pass on an error of this rank to all others, which raise it in `agree` and do not wait in vain."""
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, AutosyncError) else f"{type(error).__name__}: {error}"
        if rank == 0:
            state_facts(store, rank=0, facts={})
            store.set(VERDICT, f"rank 0: {reason}")
        else:
            state_facts(store, rank=rank, facts={REFUSAL: reason})
        raise


def agree(store: Any, *, rank: int, num_ranks: int, facts: Mapping[str, str], patience: dt.timedelta) -> None:
    """Refuse workers whose facts differ from rank 0's; on all ranks, the error names the rank and the fact.

    Call it before any connection is made: ranks with different plans would wait for one another in vain. Rank 0
    compares.
    """
    state_facts(store, rank=rank, facts=facts)
    if rank == 0:
        names = {other: f"rank {other}" for other in range(1, num_ranks)}
        store.set(VERDICT, verdict_on(store, names, facts, patience=patience))
    else:
        _await(store, _facts_key(0), patience, whom="rank 0")
    hear_verdict(store, VERDICT, patience=patience + MARGIN)


def state_facts(store: Any, *, rank: int, facts: Mapping[str, str]) -> None:
    """Publish a rank's facts for rank 0 to compare."""
    store.set(_facts_key(rank), jsonio.canonical_json(dict(facts)))


def verdict_on(store: Any, names: Mapping[int, str], facts: Mapping[str, str], *, patience: dt.timedelta) -> str:
    """Return a verdict: `SAME`, or which rank is missing, refuses or differs first. `names` are the ranks in words."""
    end = time.monotonic() + patience.total_seconds()
    for rank, name in names.items():
        left = dt.timedelta(seconds=max(end - time.monotonic(), 1.0))
        try:
            _await(store, _facts_key(rank), left, whom=name)
        except OperationError as error:
            return str(error)
        theirs = json.loads(store.get(_facts_key(rank)).decode())
        if REFUSAL in theirs:
            return f"{name}: {theirs[REFUSAL]}"
        for what, ours in facts.items():
            if theirs.get(what) != ours:
                return f"{name} has {what} {theirs.get(what)}, rank 0 has {ours} (all ranks must have the same)"
    return SAME


def hear_verdict(store: Any, key: str, *, patience: dt.timedelta) -> None:
    """Wait for rank 0's verdict; raise it as an error unless all ranks agree."""
    _await(store, key, patience, whom="rank 0")
    verdict = store.get(key).decode()
    if verdict != SAME:
        raise OperationError(verdict)


def has_stated_facts(store: Any, rank: int) -> bool:
    """Return whether a rank has published its facts; False if the store cannot be reached."""
    try:
        return bool(store.check([_facts_key(rank)]))
    except RuntimeError:
        return False


def _facts_key(rank: int) -> str:
    return f"facts/{rank}"


def _await(store: Any, key: str, patience: dt.timedelta, *, whom: str) -> None:
    try:
        store.wait([key], patience)
    except RuntimeError as error:
        raise OperationError(f"{whom} has not answered: {said(error)}") from error


@torch.no_grad()
def send_state(model: torch.nn.Module, links: Links, *, num_workers: int) -> None:
    """Copy rank 0's parameters and buffers to every worker as bytes, whatever their types and layouts are."""
    moves = expand("broadcast", "tree", num_workers)
    exchange = Exchange(links, Flow())
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.numel() and num_workers > 1:
            values = as_bytes(tensor.detach().contiguous().to("cpu", copy=True))
            pieces = cut_moves(moves, (0, len(values)), position=links.rank, item_bytes=1)
            exchange.run(pieces, values, members=range(num_workers), tag=STATE_TAG, priority=0)
            tensor.data.copy_(values.view(tensor.dtype).view(tensor.shape))


def refuse_gradient(name: str) -> Any:
    """Return a hook that refuses a gradient of a parameter that no rank synchronises."""

    def refuse(_: torch.Tensor) -> None:
        raise OperationError(f"{name} got a gradient, which the bundle does not synchronise: it got none when profiled")

    return refuse
