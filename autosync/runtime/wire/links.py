"""The connections of a session, in groups of its own, so that its messages never meet the user's.

They are made directly, on the store behind the common process group of the ranks. So ranks that are not in that group
(servers) can be members, no other rank need take part, and no Python code of torch delays a message. Ranks are
positions in the plan.

- One group of all ranks carries tagged messages. gloo sends a message only after its receiver has asked for it, so the
  receiver controls the flow. Messages with one tag between two ranks arrive in the order in which they were sent, and
  nothing else tells them apart.
- Each (members, lane) with native collectives has its own group, because the collectives of one group must come in the
  same order on all its members, and lanes have no common order. These groups are gloo's or NCCL's; messages are gloo's
  with both.

When a wait fails or reaches its limit, gloo closes every connection of the group, so all other waits fail too, here and
at the other ends.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from autosync.errors import OperationError

NativeKey: TypeAlias = tuple[tuple[int, ...], int]
"""The members and the lane of a group for native collectives."""

_ABORT_TAG = 2**31 - 1
_MEETING_TAG = 2**31 - 65
"""Far enough from the tag of an abort, which has one tag for each device."""
_NUM_NAMED = 8
_PLACE = re.compile(r"\[\S+\.cc:\d+\] ")
_NUM_SESSIONS: Counter[tuple[int, ...]] = Counter()


def base_store(group: dist.ProcessGroup | None = None) -> Any:
    """Return the store behind a process group (by default that of all ranks), without prefixes.

    A process that is in no group finds the same store by the address or the file that the group was made with.
    """
    c10d: Any = dist.distributed_c10d
    store = c10d._get_default_store() if group is None else c10d._world.pg_map[group][1]  # noqa: SLF001 - torch has no other way to ask
    while isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    return store


def session_name(ranks: Sequence[int]) -> str:
    """Return the prefix of all keys of a group's next session: the same on all its ranks, and never used before.

    `ranks` are the group's ranks in the world. Every process counts the sessions of a group for itself. A store can
    outlive the processes when a launcher restarts them, so the number of restarts is part of the prefix.
    """
    key = tuple(ranks)
    number = _NUM_SESSIONS[key]
    _NUM_SESSIONS[key] += 1
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"autosync/{restarts}/{','.join(str(rank) for rank in key)}/{number}"


class Links:
    """One rank's connections to all others. `store` is used by no other session (a `PrefixStore`).

    Any thread may send and receive. `hosts` are the names of the ranks' hosts, for errors. With `nccl_device`, native
    collectives are NCCL's, on that device.
    """

    def __init__(
        self,
        store: Any,
        *,
        rank: int,
        num_ranks: int,
        timeout: dt.timedelta,
        hosts: Sequence[str] = (),
        nccl_device: torch.device | None = None,
    ) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        # When a message was last sent or received, of `time.perf_counter`.
        self.heard_at = 0.0
        self._store = store
        self._timeout = timeout
        self._hosts = tuple(hosts)
        self._nccl_device = nccl_device
        self._natives: dict[NativeKey, Any] = {}
        self._num_natives = 0
        self._num_devices = max(1, len(_interfaces()))
        self._send: Callable[[list[torch.Tensor], int, int], Any] = _closed
        self._receive: Callable[[list[torch.Tensor], int, int], Any] = _closed
        self._group: Any = None
        if num_ranks > 1:
            self._group = self._connect("messages", tuple(range(num_ranks)))
            self._send, self._receive = self._group.send, self._group.recv

    def _connect(self, name: str, members: tuple[int, ...], num_threads: int = 1) -> Any:
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()  # noqa: SLF001 - its public name is younger than the oldest torch we run on
        options._timeout = self._timeout  # noqa: SLF001 - the same
        devices = [gloo.create_device(interface=name) for name in _interfaces()]
        # The default is the interface that this host's name leads to.
        options._devices = devices or [gloo.create_default_device()]  # noqa: SLF001 - the same
        options._threads = num_threads  # noqa: SLF001 - the same
        store = dist.PrefixStore(f"{name}/", self._store)  # type: ignore[attr-defined]
        try:
            return gloo(store, members.index(self.rank), len(members), options)
        except RuntimeError as error:
            raise self._no_connection(members, error) from error

    def _connect_nccl(self, device: torch.device, name: str, members: tuple[int, ...]) -> Any:
        nccl: Any = getattr(dist, "ProcessGroupNCCL")  # noqa: B009 - a torch without NCCL has no such name
        options = nccl.Options(is_high_priority_stream=False)
        options._timeout = self._timeout  # noqa: SLF001 - as of gloo
        store = dist.PrefixStore(f"{name}/", self._store)  # type: ignore[attr-defined]
        try:
            group = nccl(store, members.index(self.rank), len(members), options)
            # Connect now, not in the first transfer, so that a failure ends the start on all members.
            group.eager_connect_single_device(device)
        except RuntimeError as error:
            raise self._no_connection(members, error) from error
        return group

    def _no_connection(self, members: tuple[int, ...], error: RuntimeError) -> OperationError:
        everyone = ", ".join(str(rank) for rank in members)
        return OperationError(f"rank {self.rank}: no connection among ranks {everyone}: {said(error)}")

    def send(self, tensor: torch.Tensor, destination: int, tag: int) -> Any:
        """Send a contiguous tensor directly from its memory. Call `wait` of the returned work exactly once."""
        return self._send([tensor], destination, tag)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Any:
        """Ask for the tag's next message, which must be as long as the tensor. Call `wait` of the work exactly once."""
        return self._receive([tensor], source, tag)

    def make_native(self, keys: Iterable[NativeKey], *, num_threads: int = 1) -> None:
        """Make the groups of native collectives; all ranks must pass the same keys in the same order.

        A lane has one collective under way at a time, for which one thread of gloo's is enough; NCCL uses no such
        threads. Returns when all ranks have made theirs. Otherwise a rank that is refused right after its start would
        close connections that others still make, and they would say so instead of the true reason.
        """
        for members, lane in keys:
            number = self._num_natives
            self._num_natives += 1
            if self.rank not in members or len(members) == 1:
                continue
            name = f"native {number}"
            if self._nccl_device is None:
                self._natives[members, lane] = self._connect(name, members, num_threads)
            else:
                self._natives[members, lane] = self._connect_nccl(self._nccl_device, name, members)
        try:
            self._meet()
        except RuntimeError as error:
            raise self._no_connection(tuple(range(self.num_ranks)), error) from error

    def _meet(self) -> None:
        """Wait until all ranks have come here. Each hears, from one rank a round, of twice as many as before."""
        word, heard = torch.zeros(1, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
        distance = 1
        while distance < self.num_ranks:
            coming = self.receive(heard, (self.rank - distance) % self.num_ranks, _MEETING_TAG)
            self.send(word, (self.rank + distance) % self.num_ranks, _MEETING_TAG).wait()
            coming.wait()
            distance *= 2

    def native(self, members: tuple[int, ...], lane: int) -> Any:
        """Return the backend's group of these members on this lane. Its ranks are positions in `members`."""
        return self._natives[members, lane]

    def name(self, rank: int) -> str:
        """Return a rank's name for errors."""
        return f"rank {rank} on {self._hosts[rank]}" if self._hosts else f"rank {rank}"

    def names(self, ranks: Sequence[int]) -> str:
        """Return the names of some ranks for errors."""
        more = f" and {len(ranks) - _NUM_NAMED} more" if len(ranks) > _NUM_NAMED else ""
        return ", ".join([self.name(rank) for rank in ranks[:_NUM_NAMED]]) + more

    def abort(self) -> None:
        """Make all waits end with an error, here and at the other ends."""
        groups = [(self._group, self.rank, self.num_ranks)] if self._group is not None else []
        if self._nccl_device is None:
            natives = self._natives.items()
            groups += [(group, members.index(self.rank), len(members)) for (members, _), group in natives]
        else:
            for group in self._natives.values():
                group.abort()
        nothing = torch.empty(1, dtype=torch.uint8)
        for (group, rank, size), device in itertools.product(groups, range(self._num_devices)):
            # A receive that reaches its limit closes all connections of a group (on one of its devices, which the tag
            # chooses); there is no other way to close them.
            with contextlib.suppress(RuntimeError):
                group.recv([nothing], (rank + 1) % size, _ABORT_TAG - device).wait(dt.timedelta(milliseconds=1))

    def close(self) -> None:
        """Free sockets and threads. No thread may be waiting any more, which `abort` ensures."""
        self._send = self._receive = _closed
        if self._nccl_device is not None:
            for group in self._natives.values():
                group.shutdown()
        last_references = [[self._group], *([group] for group in self._natives.values())]
        self._group = None
        self._natives.clear()
        # gloo takes some milliseconds to close each connection, so groups are closed in parallel.
        closers = [threading.Thread(target=reference.clear, name="autosync-close") for reference in last_references]
        for closer, reference in zip(closers, last_references, strict=True):
            try:
                closer.start()
            except RuntimeError:
                # Python 3.12 starts no more threads while an interpreter ends.
                reference.clear()
        for closer in closers:
            if closer.ident is not None:
                closer.join()


def _interfaces() -> list[str]:
    """Return the network interfaces that the user names, as torch reads them."""
    return [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]


def _closed(_: list[torch.Tensor], __: int, ___: int) -> Any:
    raise OperationError("the connections of this session are closed")


def said(error: RuntimeError) -> str:
    """Return gloo's message for an error, without its place in gloo's source and without its jokes."""
    text = str(error).partition("\n")[0].partition(" This is typically")[0]
    return _PLACE.sub("", text).rstrip(". ") or type(error).__name__
