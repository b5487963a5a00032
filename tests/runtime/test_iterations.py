"""The counters of a script, without any thread: what goes on when, what counts as done, what is forgotten."""

from __future__ import annotations

import pytest

from autosync.errors import OperationError
from autosync.runtime.engine.iterations import Iteration, Iterations
from autosync.runtime.engine.rank_script import Link, Script

COPY, SEND, USERS, GATE = range(4)


def _script(*, lateness: int = 0, every: int = 1) -> Script:
    """A copy when its gradient is ready; a send after it and after the send before; the user's update; a gate.

    The update comes after the send, or after the copy where the send may be late.
    """
    after_copy, after_send = [Link(SEND, 0)], [Link(SEND, 1)]
    (after_copy if lateness else after_send).append(Link(USERS, 0))
    return Script(
        operations=(COPY, SEND, USERS),
        gates={("step_returns", -1): GATE},
        num_waits=(1, 1, 1, 1),
        earlier=((), (Link(SEND, 1),), (), ()),
        followers=(tuple(after_copy), tuple(after_send), (Link(GATE, 0),), ()),
        on_gradient=((COPY,),),
        on_step_called=(),
        on_user_updated=(),
        lanes={0: (SEND,)},
        instant=frozenset({USERS}),
        every=(1, every, 1, 1),
        lateness=(0, lateness, 0),
    )


class Listening:
    """Iterations, and what they told."""

    def __init__(self, script: Script) -> None:
        self.ready: list[tuple[int, int]] = []
        self.num_tellings = 0
        self.iterations = Iterations(script, on_ready=self._note, on_progress=self._count)

    def _note(self, iteration: Iteration, item: int) -> None:
        self.ready.append((iteration.number, item))

    def _count(self) -> None:
        self.num_tellings += 1

    def open_with_gradient(self) -> Iteration:
        self.iterations.open([])
        self.iterations.happen((COPY,))
        return self.iterations.current


def test_an_item_goes_on_when_all_it_waits_for_is_done() -> None:
    told = Listening(_script())
    told.iterations.open([])
    assert told.ready == []
    told.iterations.happen((COPY,))
    assert told.ready == [(0, COPY)]
    told.iterations.settle(told.iterations.current, COPY)
    assert told.ready == [(0, COPY), (0, SEND)]


def test_an_event_that_is_reported_twice_is_an_error() -> None:
    told = Listening(_script())
    told.open_with_gradient()
    with pytest.raises(OperationError, match="of step 0 was reported twice"):
        told.iterations.happen((COPY,))
    assert told.ready == [(0, COPY)]


def test_what_is_the_users_is_done_at_once_and_a_gate_is_told_of() -> None:
    told = Listening(_script())
    current = told.open_with_gradient()
    told.iterations.settle(current, COPY)
    assert told.num_tellings == 0
    told.iterations.settle(current, SEND)
    assert current.done[USERS]
    assert current.unmet[GATE] == 0
    # The gate, and that nothing is left.
    assert told.num_tellings == 2


def test_an_item_waits_for_one_of_the_iteration_before() -> None:
    told = Listening(_script())
    first = told.open_with_gradient()
    told.iterations.settle(first, COPY)
    second = told.open_with_gradient()
    told.iterations.settle(second, COPY)
    assert (1, SEND) not in told.ready
    told.iterations.settle(first, SEND)
    assert told.ready[-1] == (1, SEND)


@pytest.mark.parametrize("item", [COPY, SEND])
def test_who_waits_for_one_item_is_told_of_it(item: int) -> None:
    told = Listening(_script())
    current = told.open_with_gradient()
    told.iterations.awaited.add(item)
    told.iterations.settle(current, COPY)
    assert told.num_tellings == (item == COPY)


def test_what_is_late_is_due_later_but_not_done_before() -> None:
    told = Listening(_script(lateness=1))
    iterations = told.iterations
    first = told.open_with_gradient()
    assert not iterations.are_due_done(0)
    iterations.settle(first, COPY)
    assert iterations.are_due_done(0)
    assert not iterations.are_due_done(1)
    assert not iterations.are_done(0)
    assert iterations.are_done(-1)
    iterations.settle(first, SEND)
    assert iterations.are_done(0)


def test_what_is_not_of_every_step_is_done_when_its_iteration_opens() -> None:
    told = Listening(_script(every=2))
    told.iterations.open([])
    assert told.iterations.current.done[SEND]
    assert told.iterations.current.done[USERS]
    told.iterations.open([])
    assert not told.iterations.current.done[SEND]


def test_iterations_are_kept_as_long_as_anybody_may_ask() -> None:
    told = Listening(_script())
    for _ in range(4):
        current = told.open_with_gradient()
        told.iterations.settle(current, COPY)
        if current.number:
            told.iterations.settle(current, SEND)
    # Of the first one something is left to do; the last two may be waited for.
    assert [number for number in range(4) if told.iterations.find(number)] == [0, 2, 3]
    first = told.iterations.find(0)
    assert first is not None
    told.iterations.settle(first, SEND)
    told.iterations.open([2])
    assert [number for number in range(5) if told.iterations.find(number)] == [2, 3, 4]


def test_a_restart_forgets_what_was() -> None:
    told = Listening(_script())
    told.open_with_gradient()
    told.iterations.restart(7)
    assert told.iterations.are_done(6)
    told.iterations.open([])
    assert told.iterations.number == 7
