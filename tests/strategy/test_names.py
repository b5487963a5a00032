"""Names that are neither files nor presets are refused, all at once."""

from pathlib import Path

import pytest

from autosync.errors import InputError
from autosync.strategy.names import check_strategy_names


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("best.yaml", "plain"):
        Path(name).write_text("", encoding="utf-8")


def test_files_presets_and_others_are_names() -> None:
    check_strategy_names(["best.yaml", "plain", "ddp", "torch-ddp"], others=["torch-ddp"])


def test_all_that_is_no_name_is_told_together() -> None:
    with pytest.raises(InputError) as raised:
        check_strategy_names(["bets.yaml", "dddp", "ddp", "bets.yaml"], what="contestant", others=["torch-ddp"])
    first, second = raised.value.problems
    assert str(first).startswith("bets.yaml: cannot be read: No such file")
    assert first.hint == "did you mean 'best.yaml'?"
    assert second.what == "unknown contestant 'dddp'"
    assert "torch-ddp" in second.rule
    assert second.hint == "did you mean 'ddp'?"
