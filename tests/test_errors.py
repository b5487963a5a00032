"""The mistakes that errors carry, and how they read."""

import pytest

from autosync.errors import (
    MAX_PROBLEMS,
    AutosyncError,
    DeadlockError,
    DocumentError,
    DoesNotApplyError,
    InputError,
    OperationError,
    Problem,
    TaskError,
    UnknownNameError,
    did_you_mean,
    first_problems,
    format_path,
)


def test_a_problem_says_where_what_which_rule_and_what_would_be_right() -> None:
    problem = Problem(
        what="unknown key",
        rule="known: name, rate",
        path=("nodes", 1, "rat"),
        hint="did you mean 'rate'?",
        file="cluster.yaml",
        line=3,
    )
    assert str(problem) == ("cluster.yaml:3: nodes[1].rat: unknown key (known: name, rate); did you mean 'rate'?")


def test_what_is_not_known_is_left_out() -> None:
    assert str(Problem(what="too large", rule="at most 3")) == "too large (at most 3)"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("nodes", 1, "gbps"), "nodes[1].gbps"),
        ((0, "a"), "[0].a"),
        (("a", ""), "a.''"),
        (("x" * 100,), "x" * 77 + "..."),
    ],
)
def test_paths(path: tuple[str | int, ...], text: str) -> None:
    assert format_path(path) == text


def test_a_problem_is_one_line_that_no_terminal_obeys() -> None:
    problem = Problem(what="a\nb\u2028c", rule="d\re\x1b[31m\ud800", path=("k\n\x07y",))
    assert str(problem) == r"k \x07y: a b c (d e\x1b[31m\ud800)"


def test_a_problem_is_a_line_of_bounded_length() -> None:
    problem = Problem(what="w" * 10_000, rule="r" * 10_000, hint="h" * 10_000, path=("k" * 10_000,))
    assert str(problem) == f"{'k' * 77}...: {'w' * 397}... ({'r' * 997}...); {'h' * 397}..."


def test_the_first_problems_and_how_many_more() -> None:
    problems = [Problem(what=f"mistake {n}", rule="none", file="f.yaml", line=n) for n in range(1, MAX_PROBLEMS + 3)]
    assert first_problems(problems[:MAX_PROBLEMS]) == problems[:MAX_PROBLEMS]
    shown = first_problems(problems)
    assert shown[:MAX_PROBLEMS] == problems[:MAX_PROBLEMS]
    assert str(shown[-1]) == "f.yaml:50: and 2 more mistakes in this file (the first 50 are shown)"
    assert "and 1 more mistake in" in str(first_problems(problems[:-1])[-1])


def test_an_error_prints_one_line_a_problem() -> None:
    error = InputError([Problem(what="a", rule="b"), Problem(what="c", rule="d")])
    assert str(error) == "a (b)\nc (d)"


def test_an_error_of_one_sentence() -> None:
    error = TaskError("the task raised", rule="a task returns a Task", hint="see --debug")
    assert error.problems == (Problem(what="the task raised", rule="a task returns a Task", hint="see --debug"),)


@pytest.mark.parametrize(
    "error",
    [
        DocumentError("x", rule="y"),
        UnknownNameError("preset", "dpd", ["ddp"]),
    ],
)
def test_an_error_is_placed_and_keeps_its_type(error: InputError) -> None:
    placed = error.located("model.py", 7)
    assert type(placed) is type(error)
    assert [(p.file, p.line) for p in placed.problems] == [("model.py", 7)]
    assert placed.located("other.py", 1).problems == placed.problems


def test_an_unknown_name_lists_the_known_ones() -> None:
    error = UnknownNameError("preset", "dpd", ["ring", "ddp"], path=("preset",))
    assert str(error) == "preset: unknown preset 'dpd' (known: ddp, ring); did you mean 'ddp'?"
    assert str(UnknownNameError("node", "a", [])) == "unknown node 'a' (known: none)"


def test_no_hint_where_nothing_is_near() -> None:
    assert did_you_mean("zzz", ["ddp", "ring"]) == ""


def test_the_tree() -> None:
    for error in (DocumentError, TaskError, UnknownNameError, DoesNotApplyError):
        assert issubclass(error, InputError)
    assert issubclass(DeadlockError, OperationError)
    assert not issubclass(OperationError, InputError)
    assert issubclass(InputError, AutosyncError)
