"""`autosync.parallelize`, and the other functions that a training script calls for a parallelized model."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.runtime.batching import take_batching
from autosync.runtime.local.joint_optimizer import joined
from autosync.runtime.session.hooks import Hook
from autosync.runtime.session.settings import Settings
from autosync.runtime.session.start import start
from autosync.runtime.session.synchronisation import Synchronisation
from autosync.strategy.bundle import Bundle, bundle_at_hand, load_bundle

# The attribute by which torch's `Join` recognises a module.
_JOIN = "join_hook"
_PATIENCE_AT_EXIT_SECONDS = 20.0


GivenT = TypeVar("GivenT", bound="torch.optim.Optimizer | Sequence[torch.optim.Optimizer]")


def parallelize(
    model: torch.nn.Module,
    optimizer: GivenT,
    bundle: Bundle | Path | str | None = None,
    process_group: dist.ProcessGroup | None = None,
    *,
    timeout_seconds: float = 300.0,
    init_sync: bool = True,
    broadcast_buffers: bool = True,
    hand_off: bool = True,
    checks: bool = False,
    batch_size: int | None = None,
    trace: Path | str | None = None,
    find_unused_parameters: bool | None = None,
) -> tuple[torch.nn.Module, GivenT]:
    """Train a model with a bundle's strategy. Call it after `init_process_group`, on all ranks.

    Without a bundle, the file that AUTOSYNC_BUNDLE names in the environment is used; `autosync launch` sets it. If
    several optimizers update the model, `optimizer` is the list of all of them. A `VertexModel` follows the policy of
    the bundle's batching; `autosync.graphs.dealt_batch` deals examples.

    The returned model and optimizer are the same objects: gradients are synchronised as backward computes them, and
    `optimizer.step()` updates every rank's parameters. All ranks start from rank 0's parameters and buffers (with
    `init_sync=False` from their own, for ranks whose models are the same already). Whatever cannot be done exactly is
    refused, and no wait for another rank is longer than `timeout_seconds`.

    A plan that stock DDP can express is carried out by torch's own reducer, unless `hand_off` is false. With `checks`,
    every message tells which transfer it belongs to. This finds ranks whose transfers are misordered, which gloo would
    silently mix up; it costs one more message each time. In training, every forward pass begins with the buffers of
    rank 0, as under DDP. This takes a broadcast of all of them, for which the pass waits; `broadcast_buffers=False`
    saves it. `batch_size` promises that every batch of this rank has so many examples: a bundle with shares needs this,
    or a call of `weigh` in every step. With `find_unused_parameters`, gradients of parameters that no rank uses in a
    step do not travel; without it they are right as well, but travel as zeros. It is set by default if the bundle's
    profile found such steps. With `trace`, every rank writes a timeline to its own file, the path with the rank's
    number in its name, which Perfetto opens; it does not show what torch's reducer does. Nodes that only serve write
    their files under the same path as the first rank.
    """
    bare = bare_of(model)
    if bare in _SESSIONS:
        raise OperationError("the model is parallelized already: release(model) comes first")
    group = process_group or (dist.group.WORLD if dist.is_initialized() else None)
    if group is None:
        raise OperationError("there is no process group: call torch.distributed.init_process_group first")
    if not isinstance(bundle, Bundle):
        bundle = load_bundle(bundle or bundle_at_hand())
    settings = Settings(
        timeout_seconds=timeout_seconds,
        init_sync=init_sync,
        broadcast_buffers=broadcast_buffers,
        hand_off=hand_off,
        checks=checks,
        batch_size=batch_size,
        trace=None if trace is None else Path(trace),
        find_unused_parameters=_finds_unused(bundle, wanted=find_unused_parameters),
    )
    take_batching(bare, bundle)
    _SESSIONS[bare] = start(bare, joined(optimizer), bundle, group, settings, others=list(_SESSIONS.values()))
    vars(bare)[_JOIN] = Hook(_refuse_join)
    note_begun(bare)
    return model, optimizer


def _finds_unused(bundle: Bundle, *, wanted: bool | None) -> bool:
    return bundle.model.use_sample is not None if wanted is None else wanted


def _refuse_join(**_: object) -> None:
    raise OperationError(
        "torch's Join over a parallelized model: a rank that has no more batches would have to take part in the steps "
        "of the others, and cannot (give all ranks as many batches: drop the last ones, or repeat some)"
    )


@contextlib.contextmanager
def no_sync(model: torch.nn.Module) -> Iterator[None]:
    """Accumulate gradients unsynchronised, like DDP's `no_sync`. The last backward pass of a step goes outside."""
    session = session_of(model)
    before = session.syncs
    session.syncs = False
    try:
        yield
    finally:
        session.syncs = before


def weigh(model: torch.nn.Module, weight: float) -> None:
    """Say how much this rank's batch weighs in the mean over all ranks' batches: its examples, tokens or such.

    Every worker calls it before the backward pass of the same step (with accumulation, of the last microstep). The
    loss is the mean over what is counted. Ranks tell each other their weights, so this waits for the slowest of them.
    """
    session_of(model).weigh(weight)


def drain(model: torch.nn.Module) -> None:
    """Wait until all parameters have the values of the last step. Call it before reading them outside the model."""
    session_of(model).drain()


def where(model: torch.nn.Module) -> str:
    """Return in words what a model's synchronisation is doing now. Any thread may call it."""
    return session_of(model).where()


def describe(model: torch.nn.Module) -> str:
    """Describe what trains a model: torch's reducer or the engine, numbers of messages and lanes, and the overlap."""
    return session_of(model).describe()


def release(model: torch.nn.Module) -> None:
    """End a model's parallel training: remove all hooks and the engine, and leave the parameters as they were trained.

    The optimizer's state stays too, except that of parameters that were updated at a server or in shards: call
    `consolidate` just before to keep it.
    """
    session = session_of(model)
    del _SESSIONS[bare_of(model)]
    vars(bare_of(model)).pop(_JOIN, None)
    session.close()


@atexit.register
def _end_what_is_left() -> None:
    """End all sessions while the interpreter is still running.

    A script may end without calling `release`, and threads of the engine or of gloo that outlive the interpreter would
    abort the process. Updates under way are finished, but ranks that are stuck are not waited for long.
    """
    while _SESSIONS:
        _, session = _SESSIONS.popitem()
        # The script is over, and an error now is not the script's.
        with contextlib.suppress(Exception):
            session.close(patience_seconds=_PATIENCE_AT_EXIT_SECONDS)
        del session
    # Hooks form reference cycles, which hold the last references to the groups.
    gc.collect()


def _before_fork() -> None:
    """Finish all updates before a fork, so that the new process finds finished parameters in its copies of models."""
    for session in list(_SESSIONS.values()):
        # The next step will report an error that happens here.
        with contextlib.suppress(Exception):
            session.drain()


def _in_forked_process() -> None:
    """Leave sessions and connections to the parent, because a forked process shares them with it."""
    for session in list(_SESSIONS.values()):
        session.leave_to_parent()
        hold_for_good(session)
    _SESSIONS.clear()


os.register_at_fork(before=_before_fork, after_in_child=_in_forked_process)


def hold_for_good(one: object) -> None:
    """Keep an object with its connections as long as this process lives, a forked one that shares them with its parent.

    If they were freed when this process ends, gloo would close them for the parent as well.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def bare_of(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model itself, without the wrapper that `torch.compile` puts around it."""
    bare: torch.nn.Module = getattr(model, "_orig_mod", model)
    return bare


def session_of(model: torch.nn.Module) -> Synchronisation:
    """Return the session that synchronises a parallelized model."""
    session = _SESSIONS.get(bare_of(model))
    if session is None:
        raise OperationError("the model is not parallelized: parallelize(model, optimizer, bundle) comes first")
    return session


def is_parallelized(model: torch.nn.Module) -> bool:
    """Whether a session synchronises a model."""
    return bare_of(model) in _SESSIONS


def num_parallelized() -> int:
    """Return the number of models that this process has parallelized, including released ones."""
    return len(_BEGUN)


def note_begun(model: torch.nn.Module) -> None:
    """Count a model that this process trains in parallel."""
    _BEGUN.append(type(model).__name__)


_SESSIONS: weakref.WeakKeyDictionary[torch.nn.Module, Synchronisation] = weakref.WeakKeyDictionary()
"""The session of each parallelized model."""

_BEGUN: list[str] = []
"""The classes of all models that this process has parallelized."""
