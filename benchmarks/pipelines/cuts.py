"""Profiles real models, as deep as others train them, and says how evenly each can be cut into stages.

python benchmarks/pipelines/cuts.py > cuts.json

The models are those of `tests/models`, with more layers where that folder's are few. Needs the extra `models`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from autosync import Task
from autosync.specs.cuts import even_stages
from autosync.specs.profile.run import profile

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.shared import parser_of, report, run, tell
from tests.models import zoo

LAYERS: Mapping[str, int] = {
    **dict.fromkeys(("bert", "gpt2", "llama", "vit", "mixtral", "mamba", "lora", "mixer"), 12),
    **dict.fromkeys(("t5", "whisper", "switch", "swin"), 6),
    "convnext": 3,
    "resnet": 2,
}
"""Where encoder and decoder, or several widths, have so many each, the model has more in all."""
NUM_STAGES = 4
MOST_EXCESS = 0.15
LEAST_SHARE = 12 / 15


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="*", default=(), metavar="MODEL", help="some of the models")
    options = parser.parse_args()
    zoo.declare_operators()
    entries = [one for one in zoo.ENTRIES if one.library != "torch" and (not options.only or one.name in options.only)]
    found = {}
    for entry in entries:
        found[entry.name] = cut(entry)
        tell(f"{entry.name}: {found[entry.name]}")
    even = [name for name, one in found.items() if one["excess"] is not None and one["excess"] <= MOST_EXCESS]
    document = {"num_stages": NUM_STAGES, "num_models": len(found), "even": even, "models": found}
    return report(document, holds=len(even) >= LEAST_SHARE * len(found))


def cut(entry: zoo.Entry) -> dict[str, Any]:
    """Profile a model and return how much longer than an even stage the slowest of its most even stages takes."""
    layers = LAYERS.get(entry.name)
    task = Task(
        name=entry.name,
        model=entry.model if layers is None else functools.partial(entry.model, layers=layers),
        batch=entry.batch,
        loss=entry.loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        batch_size=len(next(iter(entry.batch(torch.Generator()).values()))),
    )
    timeline = profile(task, cuts=True).timeline
    stages = even_stages(timeline, NUM_STAGES)
    return {
        "num_cuts": len(timeline.cuts),
        "excess": None if stages is None else stages.excess,
        "refused": timeline.uncut or timeline.mixes,
    }


if __name__ == "__main__":
    run(main)
