"""`hosts_main.py RANK WORLD_SIZE STORE URL`: a rank that reads an epoch, names hosts that are served worse, and reads a
second epoch that is dealt by rate."""

import json
import sys

import torch.distributed as dist

import autosync
from autosync.errors import OperationError
from autosync.inputs.tar_shards import TarShards
from autosync.specs.input_settings import InputSettings


def main(rank: int, world_size: int, store: str, url: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    shards = TarShards([url], decode=lambda sample: int(sample["cls"]))
    settings = InputSettings(num_workers=0, read_bytes=4096, read_concurrency=2)
    loader = autosync.loader(shards, settings, batch_size=4)
    error = ""
    try:
        loader.unfair_hosts()
    except OperationError as found:
        error = str(found)
    num_examples = sum(len(batch) for batch in loader)
    unfair = [[one.host, one.share, str(one)] for one in loader.unfair_hosts()]
    rates = loader.served_rates()
    shares = loader.deal_by_rate()
    batches = [batch.tolist() for batch in loader]
    told = {
        "num_examples": num_examples,
        "unfair": unfair,
        "too_early": error,
        "rates": rates.hosts,
        "example_bytes": rates.example_bytes,
        "shares": shares,
        "state": loader.state_dict().get("shares"),
        "batches": batches,
    }
    sys.stdout.write(json.dumps(told) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
