"""The doctor's command line: its refusals before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Shell


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--cluster", "local-2"), "name a MODEL, or a script after --: one of them"),
        (("model.yaml", "--cluster", "local-2", "--", "train.py"), "one of them"),
        (("model.yaml",), "--cluster"),
        (("--cluster", "local-2", "--", "train.sh"), "train.sh is no script"),
        (("--cluster", "nowhere.yaml", "--", "train.py"), "nowhere.yaml"),
        (("resnet", "--cluster", "local-2"), "resnet"),
        (("--cluster", "local-2", "--steps", "1", "--", "train.py"), "--steps"),
    ],
)
def test_mistakes_are_refused(shell: Shell, arguments: tuple[str, ...], told: str) -> None:
    assert shell.run("doctor", *arguments) == 2
    assert told in shell.err
    assert shell.out == ""


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise ValueError('no data')", "no data"),
        ("print('done')", "trained no torch.nn.parallel.DistributedDataParallel"),
    ],
)
@pytest.mark.slow
def test_a_script_that_shows_no_steps(shell: Shell, source: str, told: str) -> None:
    Path("train.py").write_text(source)
    assert shell.run("doctor", "--cluster", "local-2", "--", "train.py") == 1
    assert told in shell.err
    assert shell.out == ""
