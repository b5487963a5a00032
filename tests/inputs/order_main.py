"""`order_main.py RANK WORLD_SIZE STORE FOLDER`: a rank that makes loaders, some of which differ from other ranks'."""

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

import autosync
from autosync.errors import InputError
from autosync.inputs.tar_shards import TarShards
from autosync.specs.input_settings import InputSettings


def main(rank: int, world_size: int, store: str, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    paths = sorted(Path(folder).glob("*.tar"))
    is_last = rank == world_size - 1
    told = [
        _made(paths[::-1] if is_last else paths),
        _made(paths, batch_size=2 + is_last),
        _made(paths[1:] if is_last else paths),
        _made(paths),
        # It is of this rank alone.
        _made(paths[:1], rank=0, world_size=1) if is_last else "",
        _made(paths),
    ]
    sys.stdout.write(json.dumps(told) + "\n")
    dist.destroy_process_group()


def _made(paths: list[Path], **more: Any) -> str:
    """Make a loader, one rank after the other; return the error."""
    told = ""
    for rank in range(dist.get_world_size()):
        if rank == dist.get_rank():
            try:
                autosync.loader(TarShards(paths), InputSettings(num_workers=0), **{"batch_size": 2, **more})
            except InputError as error:
                told = str(error)
        if "rank" not in more:
            dist.barrier()
    return told


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
