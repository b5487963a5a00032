"""A dataset of tar shards: small images, which this script makes itself.

    autosync input tune examples/inputs/tar_images.py:images --batch-size 32 -o input.yaml
    python examples/inputs/tar_images.py input.yaml

The second command trains with the settings of the first, stops in the middle of an epoch, and goes on where it stopped.
"""

import io
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import torch

import autosync
from autosync.inputs.tar_shards import TarShards

FOLDER = Path(tempfile.gettempdir()) / "autosync-tar-images"
NUM_SHARDS = 8
NUM_IMAGES = 128
SIDE = 32


def write_shards():
    """Write shards as webdataset has them: each image is a field `npy`, its class a field `cls`."""
    FOLDER.mkdir(exist_ok=True)
    chance = np.random.default_rng(0)
    for shard in range(NUM_SHARDS):
        path = FOLDER / f"train-{shard:04}.tar"
        if path.exists():
            continue
        unfinished = path.with_suffix(".part")
        with tarfile.open(unfinished, "w") as archive:
            for number in range(NUM_IMAGES):
                label = int(chance.integers(10))
                image = (chance.random((3, SIDE, SIDE)) * 128 + 12 * label).astype(np.uint8)
                data = io.BytesIO()
                np.save(data, image)
                for extension, content in (("npy", data.getvalue()), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{shard:04}/{number:05}.{extension}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        unfinished.rename(path)
    return sorted(FOLDER.glob("train-*.tar"))


def decode(sample):
    """Turn the bytes of a sample into an image and its class."""
    image = np.load(io.BytesIO(sample["npy"]), allow_pickle=False)
    return torch.from_numpy(image).float() / 255, int(sample["cls"])


def images():
    """Return the dataset; `autosync input tune` calls this."""
    return TarShards(write_shards(), decode=decode)


def main():
    torch.manual_seed(0)
    settings = sys.argv[1] if len(sys.argv) > 1 else None
    loader = autosync.loader(images(), settings, batch_size=32, shuffle="shards", seed=1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIDE * SIDE, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(batches, most=None):
        num_images = 0
        for step, (batch, labels) in enumerate(batches, start=1):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), labels).backward()
            optimizer.step()
            num_images += len(labels)
            if step == most:
                break
        return num_images

    before = train(loader, most=10)
    state = loader.state_dict()
    # Usually another process: it continues with the images not yet seen.
    again = autosync.loader(images(), settings, batch_size=32, shuffle="shards", seed=1)
    again.load_state_dict(state)
    after = train(again)
    print(f"{before} images before the stop and {after} after it, of {NUM_SHARDS * NUM_IMAGES}")
    report = again.report()
    print(f"the median step waited {report.median_wait_seconds * 1e3:.2f} ms; workers mostly {report.bottleneck}")


if __name__ == "__main__":
    main()
