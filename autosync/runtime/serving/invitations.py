"""How workers and ranks that only serve find one another, and what the first worker tells a server during training.

They meet in the store behind the workers' process group, at the door of a server's node, by sealed letters (`letters`):

    server   free                 {"server": S, "has_values": ...}     S drawn anew each time that it is free
    worker   S/call               {"number": N}                        N drawn for this training; "free" is cleared
    server   S/answer             {}                                   sealed for N: so it is there, now
    worker   S/invitation         the invitation, or {} ("come again") sealed for N

One place tells of a server that is free. Another server that is free too puts its own notice there once it is cleared,
so a notice whose process is gone holds nobody up: the first worker calls the next. So servers may be started before or
after the workers, and anew after a failure. What lies in the store and is no right letter counts as nothing.

From then on the first worker sends *words* over the session's links: that an iteration begins (its first gradient is
there), that its step was called (with what holds in it, if that has changed), that training ends. Between steps it may
ask a server for what it has, or send it what to go on with, as the user saves or loads. A server has nothing else under
way then, so these times may be as long as they like.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.plan.types import Local, Plan
from autosync.runtime.serving.sealed_letters import POLL_SECONDS, Letters
from autosync.runtime.session.agreement import STATE_TAG
from autosync.runtime.wire.exchange import finish
from autosync.runtime.wire.links import Links
from autosync.signatures import SECRET_VARIABLE, draw_number, sign

VALUES_TAG = STATE_TAG
WORD_TAG = STATE_TAG + 1
TEXT_TAG = STATE_TAG + 2
CONTENT_TAG = STATE_TAG + 3

SERVERS_VERDICT = "sealed/verdict"
"""Where the first worker tells servers whether all ranks have the same."""
_MESSAGE_BYTES = 2**28

FOREVER = dt.timedelta(days=365)
"""How long one waits who waits as long as the other is there."""

Word = Literal["training begins", "iteration begins", "step called", "tell state", "take state", "training ends"]
_WORDS: tuple[Word, ...] = get_args(Word)
_COME_AGAIN: dict[str, Any] = {}
_FREE = "free"
_NUMBER = re.compile(r"[0-9a-f]{32}")
_SESSION = re.compile(r"autosync/[0-9]{1,9}/[0-9,]{1,100000}/[0-9]{1,9}")
_MAX_PATH = 4096
_MAX_TEXT_BYTES = 2**22
_INVITATION_SECONDS = 30.0
"""How long a server that has answered a call waits for the invitation before it is free again."""


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
    checked, where timelines go (see `parallelize`), if anywhere, and the number that was drawn for this training."""

    session: str
    rank: int
    checks: bool
    trace: str | None
    number: str


def await_invitation(
    store: Any, node: str, *, rank: int, secret: str, has_values: bool, patience: dt.timedelta
) -> Invitation:
    """On a node that serves: wait until workers need it. It is that rank of its plan."""
    letters = _letters(store, node, secret)
    deadline = time.monotonic() + patience.total_seconds()
    while True:
        server = draw_number()
        number = _await_call(letters, {"server": server, "has_values": has_values}, deadline)
        letters.put(f"{server}/answer", {}, number)
        answered = time.monotonic()
        while time.monotonic() - answered < _INVITATION_SECONDS:
            content = letters.read(f"{server}/invitation", number)
            if content == _COME_AGAIN:
                break
            invitation = None if content is None else _invitation_of(content, rank=rank, number=number)
            if invitation is not None:
                return invitation
            time.sleep(POLL_SECONDS)


def _await_call(letters: Letters, notice: Mapping[str, Any], deadline: float) -> str:
    """Let the workers know that a server is free, until they call it: the number of the training that needs it."""
    letters.put(_FREE, notice)
    while True:
        call = letters.read(f"{notice['server']}/call")
        number = None if call is None else call.get("number")
        if isinstance(number, str) and _NUMBER.fullmatch(number):
            if letters.read(_FREE) == notice:
                letters.clear(_FREE)
            return number
        if _server_in(letters.read(_FREE)) is None:
            letters.put(_FREE, notice)
        if time.monotonic() >= deadline:
            raise OperationError("no workers have called for this server in time")
        time.sleep(POLL_SECONDS)


def invite(store: Any, node: str, invitation: Invitation, *, secret: str, patience: dt.timedelta) -> bool:
    """On the first worker: have the server of a node join a session. Whether it has the first values already."""
    letters = _letters(store, node, secret)
    deadline = time.monotonic() + patience.total_seconds()
    called: dict[str, bool] = {}
    while True:
        notice = letters.read(_FREE)
        server = _server_in(notice)
        if server is not None and notice is not None:
            if server not in called:
                called[server] = bool(notice.get("has_values"))
                letters.put(f"{server}/call", {"number": invitation.number})
            letters.clear(_FREE)
        for one, has_values in called.items():
            if letters.read(f"{one}/answer", invitation.number) is not None:
                for other in called:
                    content = asdict(invitation) if other == one else _COME_AGAIN
                    letters.put(f"{other}/invitation", content, invitation.number)
                return has_values
        if time.monotonic() >= deadline:
            raise OperationError(_no_server(letters, node, secret, patience.total_seconds()))
        time.sleep(POLL_SECONDS)


def _no_server(letters: Letters, node: str, secret: str, seconds: float) -> str:
    words = (
        f"no server is there for node {node} after {seconds:g} s "
        f"(the strategy needs one: autosync serve BUNDLE --node {node})"
    )
    if not secret:
        return f"{words}; a server with a secret is not to be seen from here: {SECRET_VARIABLE} is not set on this rank"
    if letters.is_foreign(_FREE):
        return f"{words}; what lies at its place was not sealed with this rank's {SECRET_VARIABLE}"
    return f"{words}; one with another {SECRET_VARIABLE} than this rank's, or with --open, is not to be seen from here"


def _server_in(notice: Mapping[str, Any] | None) -> str | None:
    """The server that a notice tells of."""
    server = None if notice is None else notice.get("server")
    return server if isinstance(server, str) and _NUMBER.fullmatch(server) else None


def _invitation_of(content: Mapping[str, Any], *, rank: int, number: str) -> Invitation | None:
    """The invitation, if it has the fields of one, is for this rank and is about this training; else None."""
    types: dict[str, tuple[type, ...]] = {
        "session": (str,),
        "rank": (int,),
        "checks": (bool,),
        "trace": (str, type(None)),
        "number": (str,),
    }
    if content.keys() != types.keys() or any(type(content[name]) not in kinds for name, kinds in types.items()):
        return None
    trace = content["trace"]
    is_right = (
        content["rank"] == rank
        and content["number"] == number
        and _SESSION.fullmatch(content["session"])
        and (trace is None or (len(trace) <= _MAX_PATH and "\0" not in trace and trace.startswith("/")))
    )
    return Invitation(**content) if is_right else None


def _letters(store: Any, node: str, secret: str) -> Letters:
    return Letters(_door(store, node, secret), secret, "server", node)


def _door(store: Any, node: str, secret: str = "") -> Any:
    """A node's place in a store; with a secret one whose name an outsider cannot guess (though it may list all)."""
    name = sign(secret, "door", node)[:32] if secret else node
    return dist.PrefixStore(f"autosync/servers/{name}", store)  # type: ignore[attr-defined]


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
    if not (0 <= index < len(_WORDS) and 0 <= size <= _MAX_TEXT_BYTES):
        raise OperationError(f"the first worker said word {index} of {size} bytes, which is none of ours")
    body = torch.empty(size, dtype=torch.uint8)
    if size:
        links.receive(body, 0, TEXT_TAG).wait()
    return _WORDS[index], bytes(body.tolist()).decode("utf-8", "replace")


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
