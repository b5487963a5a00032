"""Exchanges state between a rank that only serves and the first worker, between two steps."""

from __future__ import annotations

import json
from collections.abc import Mapping

import safetensors.torch
import torch

from autosync.runtime.checkpoints.collected import Collected, Sent
from autosync.runtime.checkpoints.rank_state import RankState, pack
from autosync.runtime.engine.engine import Engine
from autosync.runtime.engine.execution import Execution
from autosync.runtime.serving.invitations import receive_content, send_content
from autosync.runtime.wire.links import Links


def tell_state(engine: Engine, execution: Execution, links: Links) -> None:
    """Send the first worker this rank's optimizer states and its own copies of parameters."""
    engine.wait_done()
    state = RankState(elements=list(execution.kept(engine.iteration + 1)))
    for place, _, piece in execution.states():
        state.add_optimizer(place.variable, place, piece.shape, piece.entry)
    send_content(pack(state), links, 0)


@torch.no_grad()
def take_state(
    text: str, engine: Engine, execution: Execution, links: Links, *, parameters: Mapping[str, torch.Tensor]
) -> None:
    """Take the state that the first worker sends and continue from it; `text` gives the step, if that changes."""
    order = json.loads(text)
    collected = Collected([Sent(safetensors.torch.load(receive_content(links, 0)))])
    engine.wait_done()
    step = engine.iteration + 1 if order["step"] is None else order["step"]
    reloaded = [name for name in parameters if collected.has("param", name)]
    for name in reloaded:
        parameters[name].copy_(collected.whole("param", name, parameters[name]))
    execution.follow_parameters(reloaded, step)
    for what, place, values in execution.kept(step):
        if collected.has(what, place.variable):
            values.copy_(place.read(collected.whole(what, place.variable, parameters[place.variable])))
    if order["has_optimizer"]:
        execution.load_states({name: collected.entry(name, value) for name, value in parameters.items()})
    if order["step"] is not None:
        execution.memory.forget()
        engine.restart(step)
