"""Task files: what loads, and that every mistake is told with the user's file and line."""

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from autosync import Task
from autosync.errors import TaskError
from autosync.specs import task_run
from autosync.specs.task_file import is_task, load_task

HEAD = """\
import torch
from torch import nn
from autosync import Task

FIELDS = dict(
    model=lambda: nn.Linear(2, 1),
    batch=lambda generator: torch.rand(3, 2, generator=generator),
    loss=lambda model, batch: model(batch).mean(),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
)
"""
# The first line after HEAD is line 11.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.py"


def failure(file: Path, text: str, name: str = "") -> TaskError:
    file.write_text(HEAD + text, encoding="utf-8")
    with pytest.raises(TaskError) as caught:
        load_task(f"{file}{name}")
    return caught.value


def test_a_function_or_a_task_by_any_name(file: Path) -> None:
    file.write_text(HEAD + "def task():\n    return Task(**FIELDS)\nsmall = Task(name='tiny', **FIELDS)\n", "utf-8")
    task = load_task(str(file))
    assert (task.name, task.source) == ("model", f"{file}:task")
    small = load_task(f"{file}:small")
    assert (small.name, small.source) == ("tiny", f"{file}:small")
    file.write_text(HEAD + "def big():\n    return Task(**FIELDS)\n", "utf-8")
    assert load_task(f"{file}:big").name == "model_big"


def test_neighbours_are_imported_from_the_files_own_folder(tmp_path: Path) -> None:
    for folder, number in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside.py").write_text(f"NUMBER = {number}\n", "utf-8")
        text = HEAD + "import beside\ndef task():\n    return Task(batch_size=beside.NUMBER, **FIELDS)\n"
        (tmp_path / folder / "model.py").write_text(text, "utf-8")
    path_before = list(sys.path)
    assert [load_task(str(tmp_path / name / "model.py")).batch_size for name in ("one", "two", "one")] == [1, 2, 1]
    assert sys.path == path_before


def test_the_file_is_read_as_it_is_now_and_leaves_nothing_behind(file: Path) -> None:
    for size in (1, 2):
        file.write_text(HEAD + f"def task():\n    return Task(batch_size={size}, **FIELDS)\n", "utf-8")
        os.utime(file, (0, 0))
        assert load_task(str(file)).batch_size == size
    assert list(file.parent.iterdir()) == [file]


def test_what_the_file_prints_is_kept_from_stdout(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(HEAD + "print('hello')\ndef task():\n    print('again')\n    return Task(**FIELDS)\n", "utf-8")
    load_task(str(file))
    out, err = capsys.readouterr()
    assert (out, err) == ("", "hello\nagain\n")


@pytest.mark.parametrize(
    ("text", "name", "line", "message"),
    [
        ("def task(:\n    pass\n", "", 11, "no Python: invalid syntax (a task file is Python)"),
        (
            "\nraise RuntimeError('no data\\nset')\n",
            "",
            12,
            "importing the file raised RuntimeError: no data set (a task's code must run)",
        ),
        (
            "import not_there\n",
            "",
            11,
            (
                "importing the file raised ModuleNotFoundError: No module named 'not_there' (a task's code must run); "
                f"install it for {sys.executable}"
            ),
        ),
        (
            "def deeper():\n    return {}['key']\ndef task():\n    return deeper()\n",
            "",
            12,
            "task() raised KeyError: 'key' (a task's code must run)",
        ),
        (
            "def task():\n    return eval('1 +')\n",
            "",
            12,
            "no Python: invalid syntax (a task file is Python)",
        ),
        ("def task():\n    raise SystemExit(3)\n", "", 12, "task() raised SystemExit: 3 (a task's code must run)"),
        (
            "def task():\n    pass\n",
            "",
            11,
            "task() returned None (must be a function of no arguments that returns a Task, or a Task)",
        ),
        (
            "value = 3\n",
            ":value",
            1,
            "value is of type int (must be a function of no arguments that returns a Task, or a Task)",
        ),
        (
            "def task(size):\n    return Task(**FIELDS)\n",
            "",
            11,
            "task() raised TypeError: task() missing 1 required positional argument: 'size' (a task's code must run)",
        ),
        (
            "def task():\n    return Task(batch_size='32', **FIELDS)\n",
            "",
            12,
            "batch_size: is '32' (a whole number of 1 or more)",
        ),
        (
            "def task():\n    return Task(batchsize=32, **FIELDS)\n",
            "",
            12,
            (
                "task() raised TypeError: Task.__init__() got an unexpected keyword argument 'batchsize' "
                "(a task's code must run); did you mean 'batch_size'?"
            ),
        ),
        (
            "def tusk():\n    pass\ndef big():\n    pass\n",
            "",
            1,
            "has no task (known: big, tusk); did you mean 'tusk'?",
        ),
        ("def big():\n    pass\n", ":bug", 1, "has no function 'bug' (known: big); did you mean 'big'?"),
        ("", "", 1, "has no task (a task file has a function task() that returns a Task)"),
        ("", ":not-a-name", 1, "'not-a-name' is no name of a function (FILE.py or FILE.py:NAME)"),
        ("", ":", 1, "'' is no name of a function (FILE.py or FILE.py:NAME)"),
    ],
)
def test_a_mistake_is_told_with_file_and_line(file: Path, text: str, name: str, line: int, message: str) -> None:
    error = failure(file, text, name)
    [problem] = error.problems
    assert (problem.file, problem.line) == (str(file), line)
    assert str(error) == f"{file}:{line}: {message}"


def test_a_missing_package_is_to_be_installed_for_this_python(file: Path) -> None:
    [problem] = failure(file, "import no_such_package_xyz\n", "").problems
    assert "No module named 'no_such_package_xyz'" in problem.what
    assert problem.hint == f"install it for {sys.executable}"


def test_the_users_exception_is_the_cause(file: Path) -> None:
    assert isinstance(failure(file, "def task():\n    return 1 / 0\n").__cause__, ZeroDivisionError)


def test_a_mistake_in_a_neighbour_is_told_with_both_places(file: Path) -> None:
    (file.parent / "beside.py").write_text("\ndef build():\n    raise ValueError('odd width')\n", "utf-8")
    error = failure(file, "import beside\ndef task():\n    return beside.build()\n")
    assert str(error) == (
        f"{file}:13: task() raised ValueError: odd width (a task's code must run); "
        f"raised at {file.parent / 'beside.py'}:3"
    )
    (file.parent / "beside.py").write_text("x = = 1\n", "utf-8")
    [problem] = failure(file, "import beside\n").problems
    assert (problem.file, problem.line) == (str(file.parent / "beside.py"), 1)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for target in (tmp_path / "none.py", tmp_path):
        with pytest.raises(TaskError):
            load_task(str(target))
    with pytest.raises(TaskError, match=r"none\.py: no such file \(a task is a function in a Python file\)"):
        load_task(str(tmp_path / "none.py"))
    with pytest.raises(TaskError, match=r"'model\.yaml' names no task \(FILE\.py or FILE\.py:NAME\)"):
        load_task("model.yaml")


def test_interrupting_is_no_mistake_of_the_file(file: Path) -> None:
    file.write_text("raise KeyboardInterrupt\n", "utf-8")
    with pytest.raises(KeyboardInterrupt):
        load_task(str(file))


@pytest.mark.parametrize(
    ("target", "expected"), [("a.py", True), ("a.py:b", True), ("a.yaml", False), ("resnet50", False), ("a.pyc", False)]
)
def test_a_task_is_told_from_a_spec_by_its_name(target: str, expected: bool) -> None:
    assert is_task(target) is expected


def run_a_step(task: Task) -> None:
    model = task_run.build_model(task)
    optimizer = task_run.build_optimizer(task, model.parameters())
    batch = task_run.draw_batch(task, torch.Generator())
    task_run.run_backward(task, task_run.compute_loss(task, model, batch))
    task_run.step_optimizer(task, optimizer)


@pytest.mark.parametrize(
    ("fields", "line", "message"),
    [
        ("'model': lambda: 3", 12, "model() returned a value of type int (must return a torch.nn.Module)"),
        (
            "'model': nn.ReLU",
            1,
            "the model has no trainable parameters (at least one needs a gradient); it has no parameters at all",
        ),
        (
            "'model': lambda: nn.Linear(2, 1).requires_grad_(False)",
            12,
            "the model has no trainable parameters (at least one needs a gradient); all are frozen",
        ),
        ("'model': lambda: 1 / 0", 12, "model() raised ZeroDivisionError: division by zero (a task's code must run)"),
        ("'batch': lambda g: {}[0]", 12, "batch(generator) raised KeyError: 0 (a task's code must run)"),
        ("'loss': lambda m, b: 3.0", 12, "loss(model, batch) returned a value of type float (must return a Tensor)"),
        ("'loss': lambda m, b: m(b)", 12, "the loss has 3 elements (must be one number); take the mean over the batch"),
        (
            "'loss': lambda m, b: b.mean()",
            12,
            "the loss depends on no trainable parameter (must have a gradient); detach() or no_grad() cut it off",
        ),
        (
            "'loss': lambda m: 1",
            12,
            (
                "loss(model, batch) raised TypeError: task.<locals>.<lambda>() takes 1 positional argument "
                "but 2 were given (a task's code must run)"
            ),
        ),
        (
            "'optimizer': lambda p: None",
            12,
            "optimizer(parameters) returned None (must return a torch.optim.Optimizer)",
        ),
        (
            "'optimizer': lambda p: torch.optim.LBFGS(p)",
            12,
            (
                "optimizer.step() raised TypeError: LBFGS.step() missing 1 required positional argument: 'closure' "
                "(a task's code must run)"
            ),
        ),
    ],
)
def test_parts_that_fail_when_run(file: Path, fields: str, line: int, message: str) -> None:
    file.write_text(HEAD + f"def task():\n    return Task(**FIELDS | {{{fields}}})\n", "utf-8")
    task = load_task(str(file))
    with pytest.raises(TaskError) as caught:
        run_a_step(task)
    assert str(caught.value) == f"{file}:{line}: {message}"


def test_a_task_made_in_the_program_names_the_functions_file() -> None:
    task = Task(
        model=lambda: nn.Linear(2, 1),
        batch=lambda generator: 1 / 0,
        loss=lambda model, batch: model(batch).mean(),
        optimizer=torch.optim.SGD,
    )
    with pytest.raises(TaskError) as caught:
        task_run.draw_batch(task, torch.Generator())
    assert caught.value.problems[0].file == __file__
    assert "ZeroDivisionError" in str(caught.value)
