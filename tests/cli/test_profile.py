"""`autosync profile`: one summary or JSON document on stdout, the rest on stderr; files replaced only on request."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autosync import documents
from autosync.cli import main as cli
from autosync.cli.profile import describe
from autosync.specs.model_file import dump_model, load_model
from autosync.specs.use_sample import UseSample

TASK = """\
import torch
from torch import nn
from autosync import Task

print("a user's own words")

def task():
    return Task(
        model=lambda: nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2)),
        batch=lambda generator: torch.tensor([1, 2, 2]),
        loss=lambda model, batch: model(batch).mean(),
        optimizer=lambda parameters: torch.optim.Adam(parameters),
        batch_size=3,
    )

def broken():
    return Task(
        model=lambda: nn.Linear(4, 2),
        batch=lambda generator: torch.ones(3, 5),
        loss=lambda model, batch: model(batch).mean(),
        optimizer=lambda parameters: torch.optim.Adam(parameters),
    )
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(TASK, encoding="utf-8")
    return "model.py"


def test_a_summary_for_people(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["profile", task, "--times", "computed", "--steps", "1", "-o", "model.yaml"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[:6] == [
        "model: 3 variables, 50 parameters, 200 B of gradients, batch size 3",
        "",
        "kind       variables  bytes",
        "dense              1    8 B",
        "linear             1   32 B",
        "embedding          1  160 B  2 of 10 rows touched a step",
    ]
    assert "computed times of one step on NVIDIA T4" in out
    assert "optimizer: Adam, elementwise, dense gradients only, 2 state tensors a parameter" in out
    assert "a user's own words" in err
    assert "wrote model.yaml" in err
    assert load_model("model.yaml").num_parameters == 50


def test_it_says_whether_the_gradients_of_weights_were_timed(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    for times in ("measured", "computed"):
        assert cli.run(["profile", task, "--times", times, "--steps", "1", "--cuts", "-o", f"{times}.yaml"]) == 0
        out, err = capsys.readouterr()
        assert "gradients of weights that can come later" in out
        assert f"of backward pass ({times})" in out
        assert "gradients of weights" in err
    # An older version wrote none.
    spec = load_model("computed.yaml")
    assert spec.timeline.splits
    old = replace(spec, timeline=replace(spec.timeline, splits=None))
    assert "(taken for half of that of linear layers)" in describe(old)


def test_parameters_that_some_steps_do_not_use_are_told() -> None:
    model = load_model("moe")
    names = tuple(variable.name for variable in model.variables if ".experts.0." in variable.name)
    sample = UseSample(groups=(names,), steps=(("1", "1"), ("0", "0")))
    lines = describe(replace(model, use_sample=sample)).splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.startswith("not every step uses all parameters"))
    assert lines[place].endswith("one rank uses 525.8 kB on average, 8 ranks 525.8 kB")
    assert lines[place + 1] == "(2 steps of 2 ranks were sampled, and ranks use much the same in a step)"


def test_computed_times_say_which_precision_and_which_figures(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["profile", task, "--times", "computed", "--steps", "1", "--rate", "a100", "--precision", "mixed"]
    assert cli.run(arguments) == 0
    out = capsys.readouterr().out
    assert "computed times of one step on NVIDIA A100\n" in out
    assert "in mixed precision, at the shares of peak rates that training throughputs show (" in out


def test_one_json_document(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["profile", task, "--steps", "1", "--json", "-o", "model.json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == dump_model(load_model("model.json"))
    assert printed["timeline"]["source"] == "measured"


def test_no_file_is_replaced_unasked(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = Path("mine.yaml")
    output.write_text("mine\n", encoding="utf-8")
    assert cli.run(["profile", task, "-o", "mine.yaml"]) == 2
    assert "error: mine.yaml exists (no file is replaced unasked); --force replaces it" in capsys.readouterr().err
    assert output.read_text(encoding="utf-8") == "mine\n"
    assert cli.run(["profile", task, "--steps", "1", "-o", "mine.yaml", "--force"]) == 0
    assert documents.read_document(output).value["schema"] == "autosync.model/1"


def test_a_broken_task_is_one_line(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["profile", f"{task}:broken"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    [line] = [line for line in err.splitlines() if line.startswith("error")]
    # Newer torch begins its message with "addmm: ".
    words = line.replace("addmm: ", "")
    assert words.startswith("error: model.py:20: loss(model, batch) raised RuntimeError: mat1 and mat2 shapes")
    assert "Traceback" not in err


def test_debug_shows_the_users_traceback(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["profile", f"{task}:broken", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "loss=lambda model, batch: model(batch).mean()," in err


def test_a_file_without_a_task_is_answered_with_one_that_can_be_profiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text("", encoding="utf-8")
    assert cli.run(["profile", str(file)]) == 2
    first, what, *lines, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: {file}:1: has no task (")
    assert what.startswith("A task says what is trained")
    assert last == "The docs have more: docs/task.md."
    file.write_text("\n".join(line[4:] for line in lines), encoding="utf-8")
    assert cli.run(["profile", str(file), "--steps", "1"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.py"], "gone.py: no such file"),
        (["resnet50"], "'resnet50' names no task (FILE.py or FILE.py:NAME)"),
        (["model.py", "--rate", "T4"], "--rate is for computed or scaled times; add --times computed"),
        (["model.py", "--times", "computed", "--rate", "T5"], "unknown device 'T5' (known: NVIDIA A10"),
        (["model.py", "--precision", "mixed"], "--precision is for computed or scaled times"),
        (
            ["model.py", "--times", "computed", "--rate", "P100", "--precision", "mixed"],
            "NVIDIA P100 has no tensor cores (mixed precision is for devices that have some)",
        ),
        (["model.py", "--times", "scaled"], "times on cpu cannot be scaled (scaled times are measured on a known GPU)"),
        (["model.py", "--steps", "0"], "--steps"),
        (["model.py", "--device", "tpux"], "'tpux' is no device"),
    ],
)
def test_bad_input(task: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["profile", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["profile", "--help"]) == 0
    assert "autosync profile model.py -o model.yaml" in capsys.readouterr().out
