"""How workers and ranks that only serve find one another, and what the first worker tells a server during training.

They meet in the store behind the workers' process group. A server that is free lays down a number at its node's door;
the first worker of a training that needs it invites the newest number there, and tells older ones, whose process may
be gone, to come again. So servers may be started before or after the workers, and anew after a failure.

From then on the first worker sends *words* over the session's links: that an iteration begins (its first gradient is
there), that its step was called (with what holds in it, if that has changed), that training ends. Between steps it may
ask a server for what it has, or send it what to go on with, as the user saves or loads. A server has nothing else under
way then, so these times may be as long as they like.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.plan.types import Local, Plan
from autosync.runtime.agreement import STATE_TAG
from autosync.runtime.exchange import finish
from autosync.runtime.links import Links

VALUES_TAG = STATE_TAG
WORD_TAG = STATE_TAG + 1
TEXT_TAG = STATE_TAG + 2
CONTENT_TAG = STATE_TAG + 3

_MESSAGE_BYTES = 2**28

FOREVER = dt.timedelta(days=365)
"""How long one waits who waits as long as the other is there."""

Word = Literal["training begins", "iteration begins", "step called", "tell state", "take state", "training ends"]
_WORDS: tuple[Word, ...] = get_args(Word)
_COME_AGAIN = "come again"


# What a plan asks of servers.


def servers_of(plan: Plan) -> tuple[int, ...]:
    """The ranks that only serve and must be there: all of the plan's, or none where it has no work for any of them."""
    return plan.needed_servers


def served_variables(plan: Plan, rank: int) -> tuple[str, ...]:
    """The variables whose values a rank that only serves must have."""
    found = {
        plan.parts[plan.regions[region].part].variable.name: None
        for operation in plan.operations
        if any(rank in group for group in operation.groups)
        for region in ((*operation.inputs, *operation.outputs) if isinstance(operation, Local) else operation.regions)
        if plan.regions[region].kind in ("param", "master")
    }
    return tuple(found)


def updates_at(plan: Plan, rank: int) -> bool:
    """Whether the optimizer runs on a rank."""
    return any(
        isinstance(operation, Local) and operation.kind == "update" and any(rank in group for group in operation.groups)
        for operation in plan.operations
    )


# In the store.


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What a server must know to join a session: the prefix of its keys, its own rank there, whether messages are
    checked, and where timelines go (see `parallelize`), if anywhere."""

    session: str
    rank: int
    checks: bool
    trace: str | None


def await_invitation(store: Any, node: str, *, has_values: bool, patience: dt.timedelta) -> Invitation:
    """On a node that serves: wait until workers need it."""
    door = _door(store, node)
    while True:
        number = door.add("arrived", 1)
        door.set(f"{number}/here", json.dumps({"has_values": has_values}))
        door.wait([f"{number}/invitation"], patience)
        text = door.get(f"{number}/invitation").decode()
        if text != _COME_AGAIN:
            return Invitation(**json.loads(text))


def invite(store: Any, node: str, invitation: Invitation, *, patience: dt.timedelta) -> bool:
    """On the first worker: have the server of a node join a session. Whether it has the first values already."""
    door = _door(store, node)
    used = door.add("invited", 0)
    try:
        door.wait([f"{used + 1}/here"], patience)
    except RuntimeError as error:
        raise OperationError(
            f"no server is there for node {node} after {patience.total_seconds():g} s "
            f"(the strategy needs one: autosync serve BUNDLE --node {node})"
        ) from error
    newest = door.add("arrived", 0)
    for number in range(used + 1, newest):
        door.set(f"{number}/invitation", _COME_AGAIN)
    door.add("invited", newest - used)
    door.wait([f"{newest}/here"], patience)
    has_values: bool = json.loads(door.get(f"{newest}/here"))["has_values"]
    door.set(f"{newest}/invitation", json.dumps(asdict(invitation)))
    return has_values


def _door(store: Any, node: str) -> Any:
    return dist.PrefixStore(f"autosync/servers/{node}", store)  # type: ignore[attr-defined]


# Over the links.


def say(links: Links, server: int, word: Word, text: str = "") -> list[Any]:
    """Tell a server something; works to wait for, each once."""
    body = text.encode()
    works = [links.send(torch.tensor([_WORDS.index(word), len(body)]), server, WORD_TAG)]
    if body:
        works.append(links.send(torch.frombuffer(bytearray(body), dtype=torch.uint8), server, TEXT_TAG))
    return works


def hear(links: Links, *, patience: dt.timedelta) -> tuple[Word, str]:
    """On a server: the first worker's next word, however long it takes."""
    header = torch.zeros(2, dtype=torch.int64)
    # A connection that closes ends this at once, whatever the limit.
    links.receive(header, 0, WORD_TAG).wait(patience)
    index, size = header.tolist()
    body = torch.empty(size, dtype=torch.uint8)
    if size:
        links.receive(body, 0, TEXT_TAG).wait()
    return _WORDS[index], bytes(body.tolist()).decode()


@torch.no_grad()
def send_values(parameters: Mapping[str, torch.Tensor], names: tuple[str, ...], links: Links, server: int) -> None:
    """On the first worker: the values of variables, for a server that has none."""
    for name in names:
        flat = parameters[name].detach().contiguous().reshape(-1).view(torch.uint8).cpu()
        if len(flat):
            finish(links.send(flat, server, VALUES_TAG), links, "to", server)


@torch.no_grad()
def receive_values(parameters: Mapping[str, torch.Tensor], names: tuple[str, ...], links: Links) -> None:
    """On a server: the values of variables, into tensors that are contiguous."""
    for name in names:
        flat = parameters[name].view(-1).view(torch.uint8)
        if len(flat):
            finish(links.receive(flat, 0, VALUES_TAG), links, "from", 0)


def send_content(content: bytes, links: Links, peer: int) -> None:
    """Bytes of any length, to the first worker or to a server."""
    finish(links.send(torch.tensor([len(content)]), peer, CONTENT_TAG), links, "to", peer)
    for begin in range(0, len(content), _MESSAGE_BYTES):
        message = bytearray(content[begin : begin + _MESSAGE_BYTES])
        finish(links.send(torch.frombuffer(message, dtype=torch.uint8), peer, CONTENT_TAG), links, "to", peer)


def receive_content(links: Links, peer: int) -> bytes:
    """What `send_content` sends."""
    size = torch.zeros(1, dtype=torch.int64)
    finish(links.receive(size, peer, CONTENT_TAG), links, "from", peer)
    content = torch.empty(int(size), dtype=torch.uint8)
    for message in torch.split(content, _MESSAGE_BYTES) if len(content) else ():
        finish(links.receive(message, peer, CONTENT_TAG), links, "from", peer)
    return content.numpy().tobytes()
