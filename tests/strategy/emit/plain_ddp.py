"""A plain torch script on every rank: `python plain_ddp.py RANK WORLD_SIZE FOLDER`. Nothing of autosync is imported.

For each MODEL.NAME.py in FOLDER, which `autosync emit` wrote, it trains the model as `wrap` wraps it; rank 0 prints,
one JSON object a line, the buckets that torch's reducer came to, and how far the gradients are from the average.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from emit_models import MODELS, draw, loss

NUM_STEPS = 4


def emitted(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem.replace(".", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(path: Path, rank: int) -> dict[str, Any]:
    torch.manual_seed(1)
    model = MODELS[path.name.partition(".")[0]]()
    model.train()
    ddp = emitted(path).wrap(model)
    for step in range(NUM_STEPS):
        model.zero_grad()
        loss(ddp, draw(torch.Generator().manual_seed(10 * step + rank))).backward()
    came = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    data = ddp.logger._get_ddp_logging_data().strs_map["rebuilt_per_bucket_param_indices"]
    buckets = [[names[int(number)] for number in bucket.split()] for bucket in data.split(",")]
    del ddp
    return {"case": path.stem, "buckets": buckets, "error": _error(model, came, rank)}


def _error(model: torch.nn.Module, came: dict[str, torch.Tensor], rank: int) -> float:
    """How far the gradients are from the average of all ranks', as a share of their norm."""
    model.zero_grad()
    loss(model, draw(torch.Generator().manual_seed(10 * (NUM_STEPS - 1) + rank))).backward()
    error = norm = 0.0
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            average = parameter.grad / dist.get_world_size()
            error += float((came[name] - average).square().sum())
            norm += float(average.square().sum())
    return (error / norm) ** 0.5


def main(rank: int, world_size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=world_size)
    for path in sorted(folder.glob("*.*.py")):
        answer = train(path, rank)
        if rank == 0:
            print(json.dumps(answer), flush=True)  # noqa: T201 a script reports by printing
    dist.destroy_process_group()
    assert not any(name.partition(".")[0] == "autosync" for name in sys.modules)
    # What DDP held of its process group is never freed: its threads meet the end of the interpreter, and now and then
    # that is an abort ("terminate called without an active exception"). What is asked here has been answered.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
