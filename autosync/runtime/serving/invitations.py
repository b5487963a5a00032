"""Connects workers with ranks that only serve, and carries the first worker's messages to servers during training.

They meet in the store behind the workers' process group, at a place for the server's node, by letters that are sealed
with a signature (`sealed_letters`):

    server   free                 {"server": S, "has_values": ...}     S is drawn each time that the server is free
    worker   S/call               {"number": N}                        N is drawn for this training; "free" is cleared
    server   S/answer             {}                                   sealed for N: the server is there, now
    worker   S/invitation         the invitation, or {} ("come again"), sealed for N

The place "free" holds the notice of one free server. Another free server puts its own notice there once the place is
cleared, so the notice of a dead process blocks nothing: the first worker calls the next server. So servers may be
started before or after the workers, and again after a failure. Anything else in the store is ignored.

From then on the first worker sends *words* over the session's links: that an iteration begins (with its first
gradient), that its step was called (with the step's options, if they have changed), that training ends. Between steps,
when the user saves or loads, it may ask a server for its state or send it the state to resume from. A server has
nothing else under way then, so these exchanges may take any time.
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
from autosync.runtime.memory.byte_views import as_bytes
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
"""The key under which the first worker tells servers whether all ranks agree."""
_MESSAGE_BYTES = 2**28

FOREVER = dt.timedelta(days=365)
"""The limit of waits that should last as long as the other side is there."""

Word = Literal["training begins", "iteration begins", "step called", "tell state", "take state", "training ends"]
_WORDS: tuple[Word, ...] = get_args(Word)
_COME_AGAIN: dict[str, Any] = {}
_FREE = "free"
_NUMBER = re.compile(r"[0-9a-f]{32}")
_SESSION = re.compile(r"autosync/[0-9]{1,9}/[0-9,]{1,100000}/[0-9]{1,9}")
_MAX_PATH = 4096
_MAX_TEXT_BYTES = 2**22
_INVITATION_SECONDS = 30.0
"""The time that a server waits for the invitation after it has answered a call. Then it is free again."""


# The servers of a plan.


def servers_of(plan: Plan) -> tuple[int, ...]:
    """Return the ranks that only serve and must take part: all servers of the plan, or none if they have no work."""
    return plan.needed_servers


def served_variables(plan: Plan, rank: int) -> tuple[str, ...]:
    """Return the variables whose values a rank that only serves needs."""
    found = {
        plan.parts[plan.regions[region].part].variable.name: None
        for operation in plan.operations
        if any(rank in group for group in operation.groups)
        for region in ((*operation.inputs, *operation.outputs) if isinstance(operation, Local) else operation.regions)
        if plan.regions[region].kind in ("param", "master")
    }
    return tuple(found)


def updates_at(plan: Plan, rank: int) -> bool:
    """Whether a rank runs the optimizer."""
    return any(
        isinstance(operation, Local) and operation.kind == "update" and any(rank in group for group in operation.groups)
        for operation in plan.operations
    )


# In the store.


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """The facts that a server needs to join a session.

    `session` is the prefix of its keys, `rank` the server's own rank, `number` the number drawn for this training.
    `checks` tells whether messages are checked, and `trace` where timelines go (see `parallelize`), if anywhere.
    """

    session: str
    rank: int
    checks: bool
    trace: str | None
    number: str


def await_invitation(
    store: Any, node: str, *, rank: int, secret: str, has_values: bool, patience: dt.timedelta
) -> Invitation:
    """Wait, on a node that serves, until workers need it as rank `rank` of the plan; return their invitation."""
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
    """Announce a free server until workers call it; return the number of the training that needs it."""
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
    """Have a node's server join a session, on the first worker; return whether it has the initial values already."""
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
    """Return the server that a notice names, or None if it names none."""
    server = None if notice is None else notice.get("server")
    return server if isinstance(server, str) and _NUMBER.fullmatch(server) else None


def _invitation_of(content: Mapping[str, Any], *, rank: int, number: str) -> Invitation | None:
    """Return the invitation if it is complete and meant for this rank and this training, else None."""
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
    """Return a node's place in a store. With a secret, outsiders cannot guess its name (but may list all names)."""
    name = sign(secret, "door", node)[:32] if secret else node
    return dist.PrefixStore(f"autosync/servers/{name}", store)  # type: ignore[attr-defined]


# Over the links.


def say(links: Links, server: int, word: Word, text: str = "") -> list[Any]:
    """Send a server a word; return the works to wait for, each exactly once."""
    body = text.encode()
    works = [links.send(torch.tensor([_WORDS.index(word), len(body)]), server, WORD_TAG)]
    if body:
        works.append(links.send(torch.frombuffer(bytearray(body), dtype=torch.uint8), server, TEXT_TAG))
    return works


def hear(links: Links, *, patience: dt.timedelta) -> tuple[Word, str]:
    """Wait on a server for the first worker's next word, however long it takes; return the word and its text."""
    header = torch.zeros(2, dtype=torch.int64)
    # A connection that closes ends this wait at once, whatever the limit.
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
    """Send the values of variables, on the first worker, to a server that has none."""
    for name in names:
        flat = as_bytes(parameters[name]).cpu()
        if len(flat):
            finish(links.send(flat, server, VALUES_TAG), links, "to", server)


@torch.no_grad()
def receive_values(parameters: Mapping[str, torch.Tensor], names: tuple[str, ...], links: Links) -> None:
    """Receive the values of variables into contiguous tensors, on a server."""
    for name in names:
        flat = parameters[name].view(-1).view(torch.uint8)
        if len(flat):
            finish(links.receive(flat, 0, VALUES_TAG), links, "from", 0)


def send_content(content: bytes, links: Links, peer: int) -> None:
    """Send bytes of any length to the first worker or to a server."""
    finish(links.send(torch.tensor([len(content)]), peer, CONTENT_TAG), links, "to", peer)
    for begin in range(0, len(content), _MESSAGE_BYTES):
        message = bytearray(content[begin : begin + _MESSAGE_BYTES])
        finish(links.send(torch.frombuffer(message, dtype=torch.uint8), peer, CONTENT_TAG), links, "to", peer)


def receive_content(links: Links, peer: int) -> bytes:
    """Receive the bytes that `send_content` sends."""
    size = torch.zeros(1, dtype=torch.int64)
    finish(links.receive(size, peer, CONTENT_TAG), links, "from", peer)
    content = torch.empty(int(size), dtype=torch.uint8)
    for message in torch.split(content, _MESSAGE_BYTES) if len(content) else ():
        finish(links.receive(message, peer, CONTENT_TAG), links, "from", peer)
    return content.numpy().tobytes()
