"""Makes the model specs that ship with autosync from the tasks of the zoo:

    python tools/make_model_specs.py            every model of the zoo
    python tools/make_model_specs.py ncf dlrm   these

Variables, kinds and orders come from a run of each task without a device; times are computed for an NVIDIA T4 by its
data sheet alone, and each spec says so: records and benchmarks rest on these times. A spec also says where its model
can be cut into stages. The same zoo makes the same files to the byte.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from autosync.specs.model_file import save_model
from autosync.specs.profile.device_rates import ZOO_RATE
from autosync.specs.profile.run import profile
from autosync.specs.task_file import load_task

sys.path.append(str(Path(__file__).parents[1]))
from benchmarks.shared import parser_of

ROOT = Path(__file__).resolve().parents[1]
ZOO = ROOT / "examples" / "zoo"
MODELS = ROOT / "configs" / "models"
# Enough batches for a steady count of the rows that recommenders touch.
STEPS = 20


def main() -> None:
    known = sorted(path.stem for path in ZOO.glob("[!_]*.py"))
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; default: all")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in known:
            parser.error(f"unknown model {name!r} (known: {', '.join(known)})")
    torch.set_num_threads(1)
    for name in arguments.names or known:
        task = load_task(str(ZOO / f"{name}.py"))
        model = profile(task, times="computed", rate=ZOO_RATE, steps=STEPS, cuts=True)
        save_model(model, MODELS / f"{name}.yaml")
        print(f"{name}: {len(model.variables)} variables, {model.num_parameters:,} parameters")


if __name__ == "__main__":
    main()
