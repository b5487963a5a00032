"""Text from files and messages reaches a terminal only as text, without control characters."""

import json
from pathlib import Path

import pytest

from autosync.cli.output import print_text
from autosync.errors import OperationError
from tests.cli.conftest import Shell

ESCAPE = "\x1b]0;owned\x07\x1b[31m"


def test_what_is_shown_has_no_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(f"a {ESCAPE}\nb\x9b1m\r", end="")
    assert capsys.readouterr().out == "a \\x1b]0;owned\\x07\\x1b[31m\nb\\x9b1m\\r"


def test_what_could_not_be_done_is_told_without_escapes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_file: object, **_: object) -> None:
        raise OperationError(f"first {ESCAPE}\nsecond")

    monkeypatch.setattr("autosync.specs.cluster_file.load_cluster", fail)
    assert shell.run("cluster", "show", "x.yaml") == 1
    assert shell.err == "error: first \\x1b]0;owned\\x07\\x1b[31m\nsecond\n"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (("name",), "is no name of a model"),
        (("variables", 0, "name"), "is no variable name"),
    ],
)
def test_names_of_a_model_are_one_line(place: tuple[str | int, ...], message: str, shell: Shell) -> None:
    from autosync.documents import read_document

    fields = read_document("model.yaml").value
    inside = fields
    for step in place[:-1]:
        inside = inside[step]
    for name in (f"a{ESCAPE}", "a\nimport os"):
        inside[place[-1]] = name
        Path("odd.json").write_text(json.dumps(fields), encoding="utf-8")
        assert shell.run("strategy", "build", "ddp", "odd.json", "--cluster", "cluster.yaml") == 2
        assert message in shell.err
        assert "\x1b" not in shell.err


def test_a_strategy_is_named_in_one_line(shell: Shell) -> None:
    assert shell.run("strategy", "build", "ddp", "model.yaml", "--cluster", "cluster.yaml", "-o", "s.json") == 0
    fields = json.loads(Path("s.json").read_text(encoding="utf-8"))
    for name in (f"a{ESCAPE}", "a\nimport os"):
        Path("odd.json").write_text(json.dumps({**fields, "name": name}), encoding="utf-8")
        assert shell.run("strategy", "show", "odd.json") == 2
        assert "is no name of a strategy" in shell.err


def test_notes_of_a_model_are_shown_without_escapes(shell: Shell) -> None:
    from autosync.documents import read_document

    fields = read_document("model.yaml").value
    fields["notes"] = [f"busy {ESCAPE}"]
    fields["timeline"]["backward"][0]["module"] = f"all {ESCAPE}"
    Path("odd.json").write_text(json.dumps(fields), encoding="utf-8")
    assert shell.run("simulate", "ddp", "--model", "odd.json", "--cluster", "cluster.yaml") == 0, shell.err
    assert "\x1b" not in shell.out + shell.err
