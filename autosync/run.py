"""`python -m autosync.run train.py ARGS` runs an unchanged script with the bundle that AUTOSYNC_BUNDLE names.

    AUTOSYNC_BUNDLE=best.yaml torchrun --nproc-per-node 2 -m autosync.run train.py --epochs 3

`autosync launch` starts scripts this way. `-m MODULE ARGS` runs a module.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autosync.errors import InputError

if TYPE_CHECKING:
    from autosync.script.door import Door
    from autosync.script.program import MainProgram


def main(arguments: Sequence[str]) -> int:
    """Run a script with the door open. Return the exit code, unless the script itself exits with another."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(f"{__doc__}")
        return 0 if arguments else 2
    try:
        door, program = _prepared(arguments)
    except InputError as error:
        sys.stderr.write("".join(f"error: {problem}\n" for problem in error.problems))
        return 2
    with door.open():
        try:
            program.run()
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
    if door.was_used:
        return 0
    sys.stderr.write(
        f"error: {program.name} has ended, and the bundle was not used: in this process it constructed no "
        "torch.nn.parallel.DistributedDataParallel, and did not call autosync.parallelize or autosync.trainer\n"
    )
    return 1


def _prepared(arguments: Sequence[str]) -> tuple[Door, MainProgram]:
    from autosync.script.bundles import bundles_at_hand
    from autosync.script.door import Door
    from autosync.script.program import MainProgram

    return Door(bundles_at_hand()), MainProgram(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
