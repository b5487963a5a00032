"""The process groups of a session: its own, so that its messages never meet the user's.

gloo mixes the data of misordered calls up without a word, and point-to-point tags are shared by all users of a group.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any

import torch.distributed as dist

from autosync.errors import OperationError
from autosync.plan.types import Plan, Transfer


class Groups:
    """A group of all ranks, and one for each set of members of a native transfer. Ranks are positions in the plan."""

    def __init__(self, group: dist.ProcessGroup, plan: Plan, timeout_seconds: float) -> None:
        num_ranks = dist.get_world_size(group)
        if num_ranks != plan.num_workers:
            raise OperationError(
                f"the process group has {num_ranks} ranks; the bundle was made for {plan.num_workers} workers"
            )
        if num_ranks != dist.get_world_size():
            what = f"the process group has {num_ranks} of {dist.get_world_size()} ranks"
            raise OperationError(f"{what}; groups within it can only be made by all ranks together")
        self.rank = dist.get_rank(group)
        self.timeout = dt.timedelta(seconds=timeout_seconds)
        self._ranks = dist.get_process_group_ranks(group)
        self._made: list[Any] = []
        self._natives: dict[tuple[int, ...], Any] = {}
        self.everyone = self._make(tuple(range(num_ranks)))

    def _make(self, members: tuple[int, ...]) -> Any:
        made = dist.new_group([self._ranks[rank] for rank in members], timeout=self.timeout, backend="gloo")
        if self.rank in members:
            self._made.append(made)
        return made

    def make_for(self, plan: Plan) -> None:
        """Make the groups that a plan needs, in the same order on every rank."""
        members = dict.fromkeys(
            group
            for operation in plan.operations
            if isinstance(operation, Transfer) and operation.algorithm == "native"
            for group in operation.groups
        )
        for group in members:
            if len(group) > 1:
                made = self._make(group)
                if self.rank in group:
                    self._natives[group] = made

    def native(self, members: tuple[int, ...]) -> Any:
        """The group of just these ranks."""
        return self._natives[members]

    def name(self, rank: int) -> int:
        """The rank's number in the world."""
        return self._ranks[rank]

    def close(self) -> None:
        """Give back all connections."""
        for group in self._made:
            # Whoever ended the process groups before has ended these too.
            with contextlib.suppress(ValueError, AssertionError):
                dist.destroy_process_group(group)
        self._made.clear()
