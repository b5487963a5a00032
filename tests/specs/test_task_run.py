"""Batches of any make move to a device with all their tensors."""

from collections import defaultdict, namedtuple
from dataclasses import dataclass

import torch

from autosync.specs.task_run import move

Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024 - users' batches are made like this, too


@dataclass
class Sample:
    image: torch.Tensor
    label: int = 3


class Named(dict[str, torch.Tensor]):
    """Stands for the mappings of libraries, which hold more than their items."""

    source = "here"


def test_every_tensor_is_moved_and_nothing_else() -> None:
    tensor = torch.ones(2)
    named = Named(x=tensor)
    named.source = "there"
    counts: defaultdict[str, list[torch.Tensor]] = defaultdict(list, a=[tensor])
    batch = (tensor, [Pair(tensor, "text")], {"deep": (tensor, None)}, Sample(tensor), named, counts, 5)
    moved = move(batch, torch.device("meta"))

    assert moved[0].is_meta
    assert type(moved[1][0]) is Pair
    assert moved[1][0].left.is_meta
    assert moved[1][0].right == "text"
    assert moved[2]["deep"][0].is_meta
    assert moved[3].image.is_meta
    assert moved[3].label == 3
    assert moved[4]["x"].is_meta
    assert moved[4].source == "there"
    assert moved[5]["a"][0].is_meta
    assert moved[5]["new"] == []
    assert moved[6] == 5
    assert not batch[0].is_meta
    assert not batch[5]["a"][0].is_meta
