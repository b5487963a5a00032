"""Messages between the ranks of a loop, on torch.distributed."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from autosync.errors import OperationError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

Array = np.ndarray[Any, Any]
TIMEOUT = dt.timedelta(days=1)
"""The longest wait for a message. It allows for long blocks; a rank that has ended is noticed at once."""
VALUE_TAG = 1


class Pending(Protocol):
    """A message that is being sent or received."""

    def wait(self) -> object:
        """Wait until the message is sent or received."""


class Peers(Protocol):
    """The other ranks. Messages with the same tag between two ranks keep their order.

    Only one thread may use it. An array must not change until its message is sent.
    """

    rank: int
    num_ranks: int

    def post_send(self, array: Array, to: int, tag: int) -> Pending:
        """Begin to send a contiguous array."""

    def post_receive(self, array: Array, source: int, tag: int) -> Pending:
        """Begin to receive into an array, which has the size of the array that was sent."""


class LostRankError(OperationError):
    """Another rank ended before its messages were done."""


@contextlib.contextmanager
def _to(other: int) -> Iterator[None]:
    """Run a block of gloo calls that involve another rank, and map their errors."""
    try:
        yield
    except RuntimeError as error:
        raise LostRankError(f"rank {other} has ended, or its link has") from error


class _Work:
    """A message of torch.distributed."""

    def __init__(self, work: Any, other: int) -> None:
        self._work = work
        self._other = other

    def wait(self) -> None:
        with _to(self._other):
            self._work.wait()


class TorchPeers:
    """Ranks that `autosync launch` started, connected by gloo. Use it as a context."""

    def __init__(self) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo", timeout=TIMEOUT)
        self._dist = dist
        self.rank = dist.get_rank()
        self.num_ranks = dist.get_world_size()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._dist.barrier()
            self._dist.destroy_process_group()

    def post_send(self, array: Array, to: int, tag: int) -> Pending:
        with _to(to):
            return _Work(self._dist.isend(_as_tensor(array), to, tag=tag), to)

    def post_receive(self, array: Array, source: int, tag: int) -> Pending:
        with _to(source):
            return _Work(self._dist.irecv(_as_tensor(array), source, tag=tag), source)


def _as_tensor(array: Array) -> Any:
    import torch

    return torch.from_numpy(array.reshape(-1).view(np.uint8))


def send_array(peers: Peers, array: Array, to: int) -> None:
    """Send an array whose size the other rank does not know."""
    flat = np.ascontiguousarray(array).reshape(-1)
    peers.post_send(np.array([flat.nbytes], dtype=np.int64), to, VALUE_TAG).wait()
    if flat.nbytes:
        peers.post_send(flat.view(np.uint8), to, VALUE_TAG).wait()


def receive_array(peers: Peers, dtype: Any, source: int) -> Array:
    """Receive an array that `send_array` sent, flattened."""
    size = np.empty(1, dtype=np.int64)
    peers.post_receive(size, source, VALUE_TAG).wait()
    data = np.empty(int(size[0]), dtype=np.uint8)
    if data.nbytes:
        peers.post_receive(data, source, VALUE_TAG).wait()
    return data.view(dtype)


def send_value(peers: Peers, value: Any, to: int) -> None:
    """Send a value that JSON can represent."""
    send_array(peers, np.array(bytearray(json.dumps(value).encode())), to)


def receive_value(peers: Peers, source: int) -> Any:
    """Receive a value that `send_value` sent."""
    return json.loads(receive_array(peers, np.uint8, source).tobytes())
