"""Carries out a plan's transfers on one rank: decides which memory travels, among which members, and how."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import torch

from autosync.plan.expansion import chunk_bounds
from autosync.plan.shards import shard_weights
from autosync.plan.types import Plan, Transfer
from autosync.right_of_way import marks
from autosync.runtime.engine.device import DevicePlacement
from autosync.runtime.memory.regions import Memory
from autosync.runtime.memory.travelling import Travelling
from autosync.runtime.memory.unused_variables import NOTHING
from autosync.runtime.wire.exchange import Coming, Exchange, TransferId
from autosync.runtime.wire.flow_control import Flow
from autosync.runtime.wire.host_staging import Staging
from autosync.runtime.wire.links import Links
from autosync.runtime.wire.native_collectives import is_native, naming, run_native, run_native_content
from autosync.runtime.wire.transfer_pieces import Pieces, compile_pieces
from autosync.runtime.wire.varying_contents import Contents, are_contents


class Prepared(NamedTuple):
    """A transfer that was prepared before its turn; `operation` is its position in the plan.

    If some of its parts stay, the buffer may be a copy of the travelling parts, whose `places` take the result.
    """

    transfer: Transfer
    operation: int
    group: tuple[int, ...]
    buffer: torch.Tensor
    places: tuple[torch.Tensor, ...] = ()


Following: TypeAlias = Callable[[], Prepared | None]
"""Returns a lane's next transfer that it has not returned yet, or None while that is not ready."""


class Carrier(Protocol):
    """Takes part in a transfer within one of its groups, which has several members."""

    def carry(
        self,
        transfer: Transfer,
        group: tuple[int, ...],
        buffer: torch.Tensor,
        identity: TransferId,
        following: Following,
    ) -> None:
        """Take part with a flat buffer, which then holds this rank's result."""

    def carry_content(
        self, transfer: Transfer, group: tuple[int, ...], content: torch.Tensor, identity: TransferId
    ) -> list[torch.Tensor]:
        """Take part with bytes whose number the others do not know; return one tensor for each member, or none."""

    def close(self) -> None:
        """Drop receives whose data will not be used."""


class Mover:
    """Takes part in transfers: those of a lane one after another, those of several lanes at the same time.

    With `travelling`, parts may stay where they are, and a transfer of which all parts stay does not take place.
    """

    def __init__(
        self,
        plan: Plan,
        memory: Memory,
        links: Links,
        *,
        placement: DevicePlacement,
        checks: bool = False,
        travelling: Travelling | None = None,
    ) -> None:
        self._plan = plan
        self._memory = memory
        self._rank = links.rank
        self._contributes = plan.ranks[links.rank].role == "worker"
        self._contents = Contents(plan, memory, rank=links.rank)
        self._in_one_order = placement.in_one_order
        self._travelling = travelling
        self._carrier: Carrier = (
            NativeCarrier(links, placement)
            if plan.backend == "nccl"
            else HostCarrier(plan, links, placement, checks=checks)
        )
        # Counted by lane and members, because not every rank takes part in all of a lane's transfers.
        self._sequences: Counter[tuple[int, tuple[int, ...]]] = Counter()
        # By lane, the next transfers that are prepared.
        self._prepared: dict[int, deque[Prepared]] = defaultdict(deque)

    def waits_its_turn(self, index: int, iteration: int) -> bool:
        """Whether a transfer cannot be asked for before its turn: native transfers, contents, and groups of one.

        Nor can one before it is known which of its parts travel.
        """
        if self._in_one_order:
            # One thread does all lanes and local work in turn.
            return True
        if self._travelling is not None and not self._travelling.is_known(index, iteration):
            return True
        transfer = self._transfer(index)
        is_ours = not is_native(transfer) and not are_contents(self._plan, transfer)
        return not is_ours or len(self._group(transfer)) == 1

    def close(self) -> None:
        """Release what is on its way; no transfer may be carried out after that."""
        self._carrier.close()

    def _transfer(self, index: int) -> Transfer:
        transfer = self._plan.operations[index]
        assert isinstance(transfer, Transfer), "local operations are not transfers"
        return transfer

    def _group(self, transfer: Transfer) -> tuple[int, ...]:
        return next(group for group in transfer.groups if self._rank in group)

    def run(self, index: int, iteration: int, following: Callable[[], int | None]) -> None:
        """Take part in one transfer (by its position in the plan); return when this rank has its result.

        `following` returns the lane's next transfers of this iteration, as soon as they are ready.
        """
        transfer = self._transfer(index)
        group = self._group(transfer)
        regions = self._moving(index, iteration)
        if len(group) == 1 or not regions:
            return
        place = (transfer.lane, group)
        identity = TransferId(index, iteration, self._sequences[place], transfer.lane)
        self._sequences[place] += 1
        if are_contents(self._plan, transfer):
            self._move_content(transfer, group, identity)
        else:
            self._move(transfer, regions, group, identity, lambda: self._prepare_next(following, iteration))

    def _moving(self, index: int, iteration: int) -> tuple[int, ...]:
        """Return the regions of a transfer that travel in an iteration."""
        if self._travelling is None:
            return self._transfer(index).regions
        return self._travelling.moving(index, iteration)

    def _prepare_next(self, following: Callable[[], int | None], iteration: int) -> Prepared | None:
        """Prepare the lane's next transfer that takes place, if it may be asked for before its turn."""
        while (index := following()) is not None:
            regions = self._moving(index, iteration)
            if regions:
                transfer = self._transfer(index)
                found = self._prepare(transfer, regions, index, self._group(transfer), iteration)
                self._prepared[transfer.lane].append(found)
                return found
        return None

    def _prepare(
        self, transfer: Transfer, regions: tuple[int, ...], index: int, group: tuple[int, ...], iteration: int
    ) -> Prepared:
        if regions == transfer.regions:
            return Prepared(transfer, index, group, self._buffer(transfer, iteration))
        views = self._memory.views(regions, iteration)
        if len(views) == 1:
            return Prepared(transfer, index, group, views[0])
        return Prepared(transfer, index, group, torch.cat(views), tuple(views))

    def _move(
        self,
        transfer: Transfer,
        regions: tuple[int, ...],
        group: tuple[int, ...],
        identity: TransferId,
        following: Following,
    ) -> None:
        waiting = self._prepared[transfer.lane]
        if waiting:
            prepared = waiting.popleft()
        else:
            prepared = self._prepare(transfer, regions, identity.operation, group, identity.iteration)
        self._carrier.carry(transfer, group, prepared.buffer, identity, following)
        if prepared.places:
            results = torch.split(prepared.buffer, [len(place) for place in prepared.places])
            torch._foreach_copy_(list(prepared.places), list(results))
        if self._plan.regions[transfer.regions[0]].kind == "param":
            self._memory.store(transfer.regions)

    def _buffer(self, transfer: Transfer, iteration: int) -> torch.Tensor:
        """Return the buffer that travels, with this rank's contribution in it."""
        kind = self._plan.regions[transfer.regions[0]].kind
        if kind == "param" and transfer.collective == "all_reduce":
            self._memory.load(transfer.regions)
        buffer = self._window(transfer, self._memory.view(transfer.regions, iteration))
        if kind in ("grad", "encoded") and not self._contributes and transfer.collective in ("reduce", "all_reduce"):
            # A rank that only serves has no gradient of its own; the buffer still holds the last step's.
            buffer.fill_(NOTHING)
        return buffer

    def _window(self, transfer: Transfer, buffer: torch.Tensor) -> torch.Tensor:
        """Return the range of the buffer that travels: all of it, or this rank's chunk of an outer split."""
        if not transfer.within:
            return buffer
        outer = next(group for group in transfer.within if self._rank in group)
        bounds = chunk_bounds(len(buffer), len(outer))
        position = outer.index(self._rank)
        return buffer[bounds[position] : bounds[position + 1]]

    def _move_content(self, transfer: Transfer, group: tuple[int, ...], identity: TransferId) -> None:
        """Move contents whose size is known only now."""
        outgoing = self._contents.outgoing(transfer, group, identity.iteration)
        found = self._carrier.carry_content(transfer, group, outgoing, identity)
        if found:
            self._contents.arrived(transfer, group, identity.iteration, found)


class HostCarrier:
    """Moves host memory over a session's links: by our own rounds, or by gloo's collectives if the plan says so.

    Data on a device travels in a copy in host memory.
    """

    def __init__(self, plan: Plan, links: Links, placement: DevicePlacement, *, checks: bool) -> None:
        self._links = links
        self._rank = links.rank
        self._device = placement.device
        transfers = [one for one in plan.operations if isinstance(one, Transfer)]
        self._flow = Flow(min((one.priority for one in transfers), default=0), marks=marks())
        lanes = {one.lane for one in transfers}
        self._exchanges = {lane: Exchange(links, self._flow, checks=checks) for lane in lanes}
        self._staging: dict[int, Staging] = {}
        if placement.is_apart:
            self._staging = {lane: Staging(pins=placement.device.type == "cuda") for lane in lanes}

    def carry(
        self,
        transfer: Transfer,
        group: tuple[int, ...],
        buffer: torch.Tensor,
        identity: TransferId,
        following: Following,
    ) -> None:
        if not self._staging:
            self._carry(transfer, group, buffer, identity, following)
            return
        staging, position = self._staging[transfer.lane], group.index(self._rank)
        weights = shard_weights(transfer.algorithm)
        with staging.copied(
            buffer, transfer.collective, num_members=len(group), position=position, weights=weights
        ) as host:
            self._carry(transfer, group, host, identity)

    def _carry(
        self,
        transfer: Transfer,
        group: tuple[int, ...],
        buffer: torch.Tensor,
        identity: TransferId,
        following: Following | None = None,
    ) -> None:
        if is_native(transfer):
            with self._flow.active(transfer.priority), naming(self._links, group):
                run_native(transfer.collective, self._links.native(group, transfer.lane), buffer)
            return
        self._exchanges[transfer.lane].run(
            self._pieces(transfer, group, buffer),
            buffer,
            members=group,
            tag=identity.operation,
            priority=transfer.priority,
            identity=identity,
            following=None if following is None else lambda: self._coming(following()),
        )

    def _coming(self, prepared: Prepared | None) -> Coming | None:
        if prepared is None:
            return None
        transfer, operation, group, buffer, _ = prepared
        pieces = self._pieces(transfer, group, buffer)
        return Coming(pieces, buffer, members=group, tag=operation, priority=transfer.priority)

    def _pieces(self, transfer: Transfer, group: tuple[int, ...], buffer: torch.Tensor) -> Pieces:
        return compile_pieces(
            transfer.collective,
            transfer.algorithm,
            num_members=len(group),
            position=group.index(self._rank),
            num_elements=len(buffer),
            item_bytes=buffer.element_size(),
            piece_bytes=self._flow.piece_bytes(transfer.priority),
        )

    def carry_content(
        self, transfer: Transfer, group: tuple[int, ...], content: torch.Tensor, identity: TransferId
    ) -> list[torch.Tensor]:
        exchange = self._exchanges[transfer.lane]
        move = {"gather_v": exchange.gather_v, "all_gather_v": exchange.all_gather_v, "broadcast": exchange.broadcast_v}
        found = move[transfer.collective](
            content.to("cpu", copy=True) if self._staging else content,
            members=group,
            tag=identity.operation,
            priority=transfer.priority,
            identity=identity,
        )
        return [one.to(self._device, copy=True) for one in found] if self._staging else found

    def close(self) -> None:
        for exchange in self._exchanges.values():
            exchange.forget()


class NativeCarrier:
    """Moves device memory by the backend's own collectives only, because NCCL has no tagged messages.

    A set of members has one group for all lanes, because the rank does all transfers in one order.
    """

    def __init__(self, links: Links, placement: DevicePlacement) -> None:
        self._links = links
        self._device = placement.device

    def carry(
        self, transfer: Transfer, group: tuple[int, ...], buffer: torch.Tensor, _: TransferId, __: Following
    ) -> None:
        with naming(self._links, group):
            run_native(transfer.collective, self._links.native(group, 0), buffer)

    def carry_content(
        self, transfer: Transfer, group: tuple[int, ...], content: torch.Tensor, _: TransferId
    ) -> list[torch.Tensor]:
        with naming(self._links, group):
            return run_native_content(transfer.collective, self._links.native(group, 0), content, self._device)

    def close(self) -> None:
        return
