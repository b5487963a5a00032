"""A model of vertex functions: runs them on the graphs of a batch, in groups or one vertex after the other."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from autosync.errors import InputError, Problem
from autosync.graphs.graph_batch import join
from autosync.graphs.input_graph import ANY_KIND, InputGraph, Integers
from autosync.graphs.lazy_weights import LazyLinears
from autosync.graphs.naive import run_naive
from autosync.graphs.policy import BatchingPolicy, policy_of
from autosync.graphs.schedule import BatchSchedule, VertexGroup, groups_by_kind, make_schedule
from autosync.graphs.state_store import StateStore
from autosync.graphs.vertex_function import VertexFunction
from autosync.specs.graph_batching import GraphBatching, GraphProfile

DEFAULT_POLICY = BatchingPolicy()

_KIND = re.compile(r"[\w-]+")


class VertexModel(torch.nn.Module):
    """A model whose graph is part of its input. Calling it with graphs returns the rows of all output vertices.

    `functions` maps kinds of vertices to their functions; one function alone serves graphs without kinds.
    `state_width` is the width of states. `policy` says how vertices are batched, and may be replaced at any time.
    """

    def __init__(
        self,
        functions: VertexFunction | Mapping[str, VertexFunction],
        *,
        state_width: int,
        policy: BatchingPolicy = DEFAULT_POLICY,
    ) -> None:
        super().__init__()
        if isinstance(functions, VertexFunction):
            functions = {ANY_KIND: functions}
        _check_functions(functions)
        if state_width < 1:
            raise InputError(f"a state has width {state_width}", rule="at least 1")
        # With an ending, because torch refuses names such as "update", which its dictionary has as methods.
        self.functions = torch.nn.ModuleDict({f"{kind}_vertex": one for kind, one in functions.items()})
        self.kinds = tuple(functions)
        self.state_width = state_width
        self.policy = policy

    def take_batching(self, batching: GraphBatching, profile: GraphProfile) -> None:
        """Follow the policy of a bundle's strategy, as `parallelize` asks for."""
        self.policy = policy_of(batching, profile)

    def schedule(self, graphs: Sequence[InputGraph]) -> BatchSchedule:
        """Return the schedule of a batch under the model's policy."""
        return make_schedule(join(graphs, self.kinds), self.policy.groups_of)

    def forward(self, graphs: Sequence[InputGraph]) -> torch.Tensor:
        """Return the pushed rows of the graphs' output vertices, example by example."""
        functions = self._functions()
        if self.policy.order == "naive":
            # Joining only checks the batch here.
            join(graphs, self.kinds)
            _join_inputs(graphs)
            return run_naive(functions, graphs, self._no_children(1))
        schedule = self.schedule(graphs)
        inputs = _join_inputs(graphs)
        pulled = _pull(functions, schedule, inputs)
        store = StateStore(schedule.num_vertices)
        lazy = LazyLinears() if self.policy.lazy_weights else None
        try:
            with contextlib.nullcontext() if lazy is None else lazy:
                self._run(functions, schedule, pulled, store, inputs.device)
            states = store.finish()
        finally:
            store.release()
            if lazy is not None:
                lazy.finish()
        return _push(functions, schedule, states)

    def _run(
        self,
        functions: Mapping[str, VertexFunction],
        schedule: BatchSchedule,
        pulled: Mapping[int, torch.Tensor],
        store: StateStore,
        device: torch.device,
    ) -> None:
        """Run all groups in order."""
        reads = torch.from_numpy(schedule.reads).to(device)
        for number, group in enumerate(schedule.groups):
            states = functions[group.kind](pulled[number], self._gather(store, group, reads))
            _check_states(states, group, self.state_width, store)
            store.write(states, group.start, group.stop)

    def _functions(self) -> dict[str, VertexFunction]:
        found = {}
        for kind, function in zip(self.kinds, self.functions.values(), strict=True):
            assert isinstance(function, VertexFunction), kind
            found[kind] = function
        return found

    def _gather(self, store: StateStore, group: VertexGroup, reads: torch.Tensor) -> torch.Tensor:
        if not group.num_children:
            return self._no_children(group.num_vertices)
        num_reads = group.read_stop - group.read_start
        if group.first_read >= 0:
            rows = store.read_slice(group.first_read, group.first_read + num_reads)
        else:
            rows = store.read_rows(reads[group.read_start : group.read_stop])
        return rows.view(group.num_vertices, group.num_children, self.state_width)

    def _no_children(self, num_vertices: int) -> torch.Tensor:
        """Return the children of vertices that have none, in the dtype and on the device of the parameters."""
        like = next((one for one in self.parameters() if one.is_floating_point()), torch.empty(0))
        return like.new_empty(num_vertices, 0, self.state_width)


def _check_functions(functions: Mapping[Any, object]) -> None:
    if not functions:
        raise InputError("the model has no vertex functions", rule="at least one")
    problems = []
    for kind, function in functions.items():
        if not isinstance(function, VertexFunction):
            what = f"the function is of type {type(function).__name__}"
            problems.append(Problem(what=what, rule="must be a VertexFunction", path=("functions", kind)))
        if not isinstance(kind, str) or not _KIND.fullmatch(kind):
            rule = "letters, digits, - and _"
            problems.append(Problem(what=f"{kind!r} is no name of a kind", rule=rule, path=("functions",)))
    if problems:
        raise InputError(problems)


def _join_inputs(graphs: Sequence[InputGraph]) -> torch.Tensor:
    first = graphs[0].inputs
    for number, graph in enumerate(graphs):
        one = graph.inputs
        if one.shape[1:] != first.shape[1:] or one.dtype != first.dtype or one.device != first.device:
            what = f"rows are {tuple(one.shape[1:])} {one.dtype} on {one.device}"
            rule = f"the same as in the first graph: {tuple(first.shape[1:])} {first.dtype} on {first.device}"
            raise InputError([Problem(what=what, rule=rule, path=("graphs", number, "inputs"))])
    return torch.cat([graph.inputs for graph in graphs])


def _pull(
    functions: Mapping[str, VertexFunction], schedule: BatchSchedule, inputs: torch.Tensor
) -> dict[int, torch.Tensor]:
    """Return what each group pulls, by the group's number. Each kind's function is called once."""
    found: dict[int, torch.Tensor] = {}
    for kind, numbers in groups_by_kind(schedule).items():
        groups = [schedule.groups[number] for number in numbers]
        vertices = np.concatenate([schedule.layout[group.start : group.stop] for group in groups])
        pulled = functions[kind].pull(inputs.index_select(0, _rows(vertices, inputs)))
        if len(pulled) != len(vertices):
            what = f"pull() of {kind} returned {len(pulled)} rows for {len(vertices)} vertices"
            raise InputError(what, rule="one row for each vertex")
        # One split, whose backward is one concatenation; slices would each fill a whole gradient with zeros.
        found.update(zip(numbers, pulled.split_with_sizes([group.num_vertices for group in groups]), strict=True))
    return found


def _push(functions: Mapping[str, VertexFunction], schedule: BatchSchedule, states: torch.Tensor) -> torch.Tensor:
    """Return the pushed rows of the output vertices. Each kind's function is called once."""
    rows = schedule.output_rows
    kinds = list(dict.fromkeys(group.kind for group in schedule.groups))
    kind_of_row = np.repeat(
        [kinds.index(group.kind) for group in schedule.groups], [group.num_vertices for group in schedule.groups]
    )[rows]
    places = [np.flatnonzero(kind_of_row == code) for code in range(len(kinds))]
    pushed = {
        kind: functions[kind].push(states.index_select(0, _rows(rows[place], states)))
        for kind, place in zip(kinds, places, strict=True)
        if len(place) or len(rows) == 0
    }
    if len(pushed) == 1:
        return next(iter(pushed.values()))
    if len({one.shape[1:] for one in pushed.values()}) > 1:
        shapes = ", ".join(f"{kind}: {tuple(one.shape[1:])}" for kind, one in pushed.items())
        raise InputError(f"kinds push rows of different shapes ({shapes})", rule="rows of one shape")
    order = np.argsort(np.concatenate(places), kind="stable")
    return torch.cat(list(pushed.values())).index_select(0, _rows(order, states))


def _rows(numbers: Integers, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(numbers).to(like.device)


def _check_states(states: object, group: VertexGroup, width: int, store: StateStore) -> None:
    wanted = (group.num_vertices, width)
    if not isinstance(states, torch.Tensor) or tuple(states.shape) != wanted:
        shape = tuple(states.shape) if isinstance(states, torch.Tensor) else type(states).__name__
        what = f"forward() of {group.kind} returned {shape} for {group.num_vertices} vertices"
        raise InputError(what, rule=f"states of shape {wanted}", hint="state_width is the width of a whole state")
    if store.states is not None and states.dtype != store.states.dtype:
        what = f"forward() of {group.kind} returned {states.dtype}"
        raise InputError(what, rule=f"all kinds have states of one dtype; earlier groups have {store.states.dtype}")
