"""docs/emit.md shows what the commands print."""

import re
import shlex
from pathlib import Path

import pytest

from autosync.cli import main
from autosync.strategy.emit.settings import DdpSettings

PAGE = (Path(__file__).parents[3] / "docs" / "emit.md").read_text(encoding="utf-8")


def test_the_commands_print_what_the_page_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    num_shown = 0
    for block in re.findall(r"```text\n(\$ .*?)```", PAGE, re.DOTALL):
        for shown in re.split(r"^\$ autosync ", block, flags=re.MULTILINE)[1:]:
            command, _, output = shown.partition("\n")
            main.run(shlex.split(command))
            told = capsys.readouterr()
            if command.startswith("emit"):
                assert told.out + told.err == output
                num_shown += 1
    assert num_shown == 2


def test_every_argument_is_told() -> None:
    settings = DdpSettings(bucket_cap_mb=1, gradient_as_bucket_view=True)
    for name in (*settings.arguments(), "bucket_cap_mb_list"):
        assert f"`{name}`" in PAGE
