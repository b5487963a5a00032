"""`autosync.parallelize`: all that a training script changes."""

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

from autosync.errors import InputError, OperationError
from autosync.runtime.local.joint_optimizer import joined
from autosync.runtime.session.hooks import Hook
from autosync.runtime.session.settings import Settings
from autosync.runtime.session.start import start
from autosync.runtime.session.synchronisation import Synchronisation
from autosync.strategy.bundle import Bundle, load_bundle

_BUNDLE_VARIABLE = "AUTOSYNC_BUNDLE"
# What torch's `Join` asks of a module.
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
    trace: Path | str | None = None,
) -> tuple[torch.nn.Module, GivenT]:
    """Train a model by a bundle's strategy, after `init_process_group`, on all its ranks.

    Without a bundle it is that of the file which AUTOSYNC_BUNDLE names in the environment: `autosync launch` sets it.

    Where several optimizers update the model, `optimizer` is the list of all of them.

    The model and the optimizer that come back are the same objects: gradients are synchronised as backward makes them,
    and `optimizer.step()` updates every rank's parameters. All ranks start from rank 0's parameters and buffers
    (`init_sync=False`: from their own, for ranks whose models are the same already). What this cannot do exactly it
    refuses, and nothing waits longer than `timeout_seconds` for another rank.

    A plan that stock DDP can express is handed to torch's own reducer, unless `hand_off` is false. `checks` has every
    message say which transfer it belongs to: that finds ranks whose transfers are misordered, which gloo would mix up
    in silence, and costs a message each. In training every forward pass begins with the buffers of rank 0, as under
    DDP: what that costs is a broadcast of all of them, which waits; `broadcast_buffers=False` spares it. With `trace`
    every rank writes a timeline to a file of its own, the path with the rank's number in its name, which Perfetto
    opens; of what torch's reducer does it knows nothing. Nodes that only serve write theirs where the first rank does.
    """
    bare = _bare(model)
    if bare in _SESSIONS:
        raise OperationError("the model is parallelized already: release(model) comes first")
    group = process_group or (dist.group.WORLD if dist.is_initialized() else None)
    if group is None:
        raise OperationError("there is no process group: call torch.distributed.init_process_group first")
    if not isinstance(bundle, Bundle):
        bundle = load_bundle(bundle or _bundle_at_hand())
    settings = Settings(
        timeout_seconds=timeout_seconds,
        init_sync=init_sync,
        broadcast_buffers=broadcast_buffers,
        hand_off=hand_off,
        checks=checks,
        trace=None if trace is None else Path(trace),
    )
    _SESSIONS[bare] = start(bare, joined(optimizer), bundle, group, settings, others=list(_SESSIONS.values()))
    vars(bare)[_JOIN] = Hook(_refuse_join)
    return model, optimizer


def _refuse_join(**_: object) -> None:
    raise OperationError(
        "torch's Join over a parallelized model: a rank that has no more batches would have to take part in the steps "
        "of the others, and cannot (give all ranks as many batches: drop the last ones, or repeat some)"
    )


@contextlib.contextmanager
def no_sync(model: torch.nn.Module) -> Iterator[None]:
    """Accumulate gradients without synchronising them, as DDP's `no_sync` does; the last microstep goes outside."""
    session = session_of(model)
    before = session.syncs
    session.syncs = False
    try:
        yield
    finally:
        session.syncs = before


def drain(model: torch.nn.Module) -> None:
    """Wait until all parameters are those of the last step: before they are read by others than the model itself."""
    session_of(model).drain()


def where(model: torch.nn.Module) -> str:
    """What a model's synchronisation is doing, in words. Any thread may ask."""
    return session_of(model).where()


def describe(model: torch.nn.Module) -> str:
    """What trains a model: whether torch's reducer or the engine, how many messages, lanes, what overlaps."""
    return session_of(model).describe()


def release(model: torch.nn.Module) -> None:
    """End a model's parallel training: no hooks and no engine are left, and the parameters are as they were trained.

    So is the optimizer's state; but that of parameters that were updated on a server or in shards is brought home by
    `consolidate` alone, just before.
    """
    session = session_of(model)
    del _SESSIONS[_bare(model)]
    vars(_bare(model)).pop(_JOIN, None)
    session.close()


@atexit.register
def _end_what_is_left() -> None:
    """End all sessions while there still is an interpreter.

    A script may end without a word to us. Threads of the engine's and of gloo's that outlive the interpreter abort the
    process. What is under way is brought to its end, but nobody who is stuck is waited for.
    """
    while _SESSIONS:
        _, session = _SESSIONS.popitem()
        # The script is over, and whatever is wrong now is not its error.
        with contextlib.suppress(Exception):
            session.close(patience_seconds=_PATIENCE_AT_EXIT_SECONDS)
        del session
    # Hooks make cycles, and in them are the groups' last references.
    gc.collect()


def _before_fork() -> None:
    """What a forked process finds in its copies of models is finished."""
    for session in list(_SESSIONS.values()):
        # What is wrong here is told at the next step.
        with contextlib.suppress(Exception):
            session.drain()


def _in_forked_process() -> None:
    """The sessions are the parent's, and so are their connections, which both processes share.

    Were they freed here, when the interpreter ends, gloo would take them from the parent as well. So they are held for
    as long as the process lives.
    """
    for session in list(_SESSIONS.values()):
        session.leave_to_parent()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
    _SESSIONS.clear()


os.register_at_fork(before=_before_fork, after_in_child=_in_forked_process)


def _bundle_at_hand() -> str:
    path = os.environ.get(_BUNDLE_VARIABLE)
    if not path:
        raise InputError(
            f"no bundle was given, and {_BUNDLE_VARIABLE} is not set",
            rule="parallelize(model, optimizer, bundle), or the bundle's file in the environment",
            hint="autosync launch BUNDLE -- SCRIPT sets it",
        )
    return path


def _bare(model: torch.nn.Module) -> torch.nn.Module:
    """The model itself, where `torch.compile` has put a wrapper around it."""
    return getattr(model, "_orig_mod", model)


def session_of(model: torch.nn.Module) -> Synchronisation:
    """What synchronises a parallelized model."""
    session = _SESSIONS.get(_bare(model))
    if session is None:
        raise OperationError("the model is not parallelized: parallelize(model, optimizer, bundle) comes first")
    return session


_SESSIONS: weakref.WeakKeyDictionary[torch.nn.Module, Synchronisation] = weakref.WeakKeyDictionary()
"""The session of each parallelized model."""
