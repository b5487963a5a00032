"""Records what each rank has done; edges and gates are checked against it."""

from __future__ import annotations

from collections.abc import Sequence

from autosync.plan.types import Edge, Plan


class Progress:
    """The progress of each rank, which decides whether edges are met. `news` counts the events on each rank."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._done: set[tuple[int, int, int]] = set()
        self._grads: set[tuple[int, int, int]] = set()
        self._steps_called = [0] * len(plan.ranks)
        self.news = [0] * len(plan.ranks)
        self._groups = [{rank: group for group in o.groups for rank in group} for o in plan.operations]
        self._operations_of = [
            [index for index, groups in enumerate(self._groups) if rank.index in groups] for rank in plan.ranks
        ]

    def operations_of(self, rank: int) -> Sequence[int]:
        """Return the operations that a rank takes part in, in order."""
        return self._operations_of[rank]

    def group_of(self, operation: int, rank: int) -> tuple[int, ...]:
        """Return the group in which a rank takes part in an operation."""
        return self._groups[operation][rank]

    def happens(self, operation: int, step: int) -> bool:
        """Whether an operation takes place in a step."""
        return (step + 1) % self._plan.operations[operation].every == 0

    def done(self, operation: int, rank: int, step: int) -> None:
        self._done.add((operation, rank, step))
        self.news[rank] += 1

    def gradient_ready(self, variable: int, rank: int, step: int) -> None:
        self._grads.add((variable, rank, step))
        self.news[rank] += 1

    def step_called(self, rank: int) -> None:
        self._steps_called[rank] += 1
        for other in range(len(self.news)):
            self.news[other] += 1

    def is_called(self, rank: int, step: int) -> bool:
        """Whether a rank has called `step()` in a step; a server counts as calling it when the first worker does."""
        is_server = self._plan.ranks[rank].role == "server"
        return self._steps_called[0 if is_server else rank] > step

    def may(self, edges: Sequence[Edge], rank: int, step: int) -> bool:
        """Whether all edges are met on a rank."""
        for edge in edges:  # noqa: SIM110 - asked millions of times, and a generator takes twice as long
            if not self._met(edge, rank, step - edge.lag):
                return False
        return True

    def _met(self, edge: Edge, rank: int, step: int) -> bool:
        if step < 0:
            return True
        if edge.event == "step_called":
            return self.is_called(rank, step)
        if edge.event == "grad_ready":
            return self._plan.ranks[rank].role == "server" or (edge.target, rank, step) in self._grads
        if rank not in self._groups[edge.target] or not self.happens(edge.target, step):
            return True
        return (edge.target, rank, step) in self._done
