"""The task of `emitted_ddp.py`."""

import sys
from pathlib import Path

from autosync import Task

sys.path.insert(0, str(Path(__file__).parent))
from emitted_ddp_model import BATCH_SIZE, draw, loss, make_model, optimizer


def task() -> Task:
    return Task(name="layers", model=make_model, batch=draw, loss=loss, optimizer=optimizer, batch_size=BATCH_SIZE)
