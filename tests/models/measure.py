"""How far two trainings are apart, and how far they may be.

The distance is that of all parameters as one vector, divided by how far training moved them: a model that is not
trained at all is 1 away. It is measured after the first step and after the last.

One vector, and not the worst tensor, because some tensors are noise in any correct training. The true gradient of an
attention's key bias is zero. AdamW divides what rounding leaves of it by its own size, and so moves the bias as far as
any other parameter, in a direction that rounding decides. What happens to a single tensor is seen in the vector all
the same: AdamW moves all elements about equally far, and after one step little else is in the distance.

THE FLOOR. The allowed distance is twice that of two runs of stock DDP, with buckets of 1 and of 25 MB. Buckets decide
in which order a collective adds. Two ranks' numbers have only one order, so with two ranks the two runs are equal, bit
for bit. But a correct engine may round where DDP does not, and after some steps this grows chaotically: weights are
rounded to bfloat16, where neighbouring floats are sometimes different numbers, and AdamW divides small gradients by
their own size. So the floor is measured, not set: it is the largest distance of other runs of stock DDP, in which one
thing is rounded otherwise and nothing else differs.

- Every reduced gradient is moved by one unit in the last place or left alone, at random (three runs). That is the
  smallest error that a gradient can have.
- The norm that clips is worked out in float64, as the engine does. torch's own, a sum of squares in float32, is up to
  25 units off in these models' first gradients, and every clipped gradient with it.
- With three ranks or more, each rank trains on another rank's batches, in turn. The sum over ranks then has another
  order, as it has for another message or another topology, and where ranks' gradients cancel that changes more than the
  last place. Stock DDP's two bucket sizes do not show it after the first step: its first step has one bucket whatever
  the size.
- Factors are another sum: the engine adds the products of all ranks' examples at once, where DDP adds those of each
  rank and then the ranks' sums. Where products cancel, the order of a sum changes more than the last place of its
  result. So for them, stock DDP sees the examples of each batch in another order, instead of moved gradients.
- A compiled model computes by other operations where hooks divide its graph. So for it, too, the examples come in
  another order, and stock DDP also trains the model as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

Values = Mapping[str, torch.Tensor]


def distance(values: Values, reference: Values, start: Values) -> float:
    """How far values are from the reference, by how far the reference is from where training started."""
    assert values.keys() == reference.keys() == start.keys()
    off = sum(_square(values[name], reference[name]) for name in reference)
    way = sum(_square(reference[name], start[name]) for name in reference)
    return math.sqrt(off / way)


def worst_tensor(values: Values, reference: Values, start: Values) -> tuple[str, float]:
    """The tensor that is furthest off by how far it went, and how far."""
    found = {
        name: math.sqrt(_square(values[name], reference[name]) / way)
        for name in reference
        if (way := _square(reference[name], start[name]))
    }
    name = max(found, key=lambda name: found[name])
    return name, found[name]


def _square(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).square().sum())
