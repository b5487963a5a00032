"""The end of a script's ranks: a script that was told to stop has the time to save what it must."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autosync.errors import OperationError
from autosync.script_tuning import launch
from autosync.script_tuning.launch import ScriptRanks
from autosync.search.progress import SilentListener
from autosync.trials.failures import TrialFailed


class _Ranks:
    """Two ranks, the second of which ends some seconds after it was asked to; the clock is this object's."""

    def __init__(self, num_seconds: float, failure: TrialFailed | None = None) -> None:
        self.now = 0.0
        self._num_seconds = num_seconds
        self._failure = failure

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _: float) -> None:
        self.now += 1.0

    def ask(self, *_: object) -> list[dict[str, Any]]:
        if self._failure is not None:
            raise self._failure
        return [{}, {}]

    def exit_codes(self) -> Sequence[int | None]:
        return [0, 0 if self.now >= self._num_seconds else None]


class _Notes(SilentListener):
    def __init__(self) -> None:
        self.noted: list[str] = []

    def note(self, text: str) -> None:
        self.noted.append(text)


def _of(ranks: _Ranks, monkeypatch: pytest.MonkeyPatch) -> ScriptRanks:
    monkeypatch.setattr(launch, "time", ranks)
    made = cast("Any", ScriptRanks.__new__(ScriptRanks))
    made._ranks, made._cluster, made._folder = ranks, SimpleNamespace(num_workers=2), Path("logs")
    made.have_failed = False
    return cast("ScriptRanks", made)


def test_a_script_has_minutes_to_save_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, progress = _Ranks(300.0), _Notes()
    _of(ranks, monkeypatch).end(progress)
    assert ranks.now == 300.0
    assert progress.noted == []


def test_a_rank_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, progress = _Ranks(1e9), _Notes()
    _of(ranks, monkeypatch).end(progress)
    (words,) = progress.noted
    assert "600 s after the script was told to end, rank 1 still ran, and was ended" in words


@pytest.mark.parametrize(("kind", "have_failed"), [("refused", False), ("raised", True), ("lost_rank", True)])
def test_ranks_that_only_refuse_can_go_on(monkeypatch: pytest.MonkeyPatch, kind: Any, have_failed: bool) -> None:
    ranks = _of(_Ranks(0.0, TrialFailed(kind, "no")), monkeypatch)
    with pytest.raises(OperationError, match="no"):
        ranks.ask("run", {})
    assert ranks.have_failed == have_failed
