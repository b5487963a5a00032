"""`torchrun … observe.py MODEL.yaml train.py ARGS` writes the model spec of a script, from its first steps.

Tuning observes a script in the same way. The script ends after these steps.
"""

import os
import sys
from pathlib import Path

from autosync.script.program import MainProgram
from autosync.script.script_facts import OBSERVED_STEPS
from autosync.script.switching_door import SwitchingDoor
from autosync.specs.model_file import save_model


class Look:
    """Observes the first steps, writes the model spec on the first rank, and ends the script."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def step_begins(self, door: SwitchingDoor) -> None:
        """Begin to observe, or end."""
        number = door.meter.num_steps
        if number == 0:
            door.observe()
        elif number == OBSERVED_STEPS:
            facts = door.facts(Path(sys.argv[0]).stem)
            if os.environ["RANK"] == "0":
                save_model(facts.model, self._path)
            raise SystemExit(0)


def main(path: str, *command: str) -> None:
    with SwitchingDoor(Look(Path(path))).open():
        MainProgram(command).run()
    raise SystemExit(f"error: {command[0]} has made fewer than {OBSERVED_STEPS} steps")


if __name__ == "__main__":
    main(*sys.argv[1:])
