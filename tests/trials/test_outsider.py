"""A process of another user on this machine, which tries for a minute: no trial fails, and no server ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "outsider" / "outsider.py"
MINUTES = 1.0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user's")
def test_an_outsider_disturbs_no_trial_and_ends_no_server() -> None:
    done = subprocess.run(
        (sys.executable, str(SCRIPT), "--minutes", str(MINUTES)),
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=590,
    )
    assert done.stdout, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert found["trials"]["num"] >= 2
    assert found["trials"]["num_failed"] == 0
    assert found["servers"] == {"secret": {"runs": True}, "open": {"runs": True}}
    assert found["training_after"] == {"done": True}
    # It did try: all of it, as another user.
    tried = found["outsider"]
    assert tried["uid"] == 1001
    for what in ("connections", "false greetings", "forged invitations", "keys: set", "keys: replay", "keys: delete"):
        assert tried[what] > 0, what
