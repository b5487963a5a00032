"""Behaviours that are not as under stock DDP: the suite must say so of each."""

import os
import time

import torch
from environment import Env, Values, behaviour, task

from autosync.errors import OperationError


@behaviour
def fault_wrong(e: Env) -> Values:
    run = e.start(task())
    run.steps(2)
    values = run.values()
    if not e.is_stock:
        values["0.weight"] += 1e-6
    return values


@behaviour
def fault_wrong_on_one_rank(e: Env) -> Values:
    return {"value": torch.ones(2) * (1 if e.is_stock or e.rank == 0 else 2)}


@behaviour
def fault_hang(e: Env) -> Values:
    if not e.is_stock and e.rank == 1:
        time.sleep(600)
    return {}


@behaviour
def fault_waits_for_the_other(e: Env) -> Values:
    """One rank refuses, and the other hears nothing of it."""
    if not e.is_stock:
        raise OperationError("no end within 8 s" if e.rank else "refused on the first rank")
    return {}


@behaviour
def fault_crash(e: Env) -> Values:
    if not e.is_stock and e.rank == 1:
        os.abort()
    return {}


@behaviour
def fault_raised(e: Env) -> Values:
    if not e.is_stock:
        raise ValueError("no error of ours")
    return {}


@behaviour
def fault_refused_on_one_rank(e: Env) -> Values:
    if not e.is_stock and e.rank == 1:
        raise OperationError("not for you")
    return {}


@behaviour
def fault_unlisted(e: Env) -> Values:
    if not e.is_stock:
        raise OperationError("for a reason that is in no table")
    return {}


@behaviour
def fault_of_ddp(e: Env) -> Values:
    """What stock DDP does not train may be refused, and may be trained."""
    if e.is_stock or e.way.preset == "ddp":
        raise ValueError("stock DDP refuses it")
    if e.way.preset == "fsdp":
        raise OperationError("and so do we")
    return {}
