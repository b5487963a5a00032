"""Python imports this module when it starts, in all processes of the suite.

torchvision's wheel may lack the compiled operators that its import describes, where torch is a build without CUDA. They
are declared before the import, so that scripts can be as people write them. No script of the suite calls them.
"""

import importlib.abc
import sys
from collections.abc import Sequence
from typing import Any


class OperatorsFirst(importlib.abc.MetaPathFinder):
    """Finds nothing; when torchvision is looked for, it declares the missing operators."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        """Look at the name of a module that is about to be imported."""
        if name == "torchvision" and self in sys.meta_path:
            sys.meta_path.remove(self)
            _declare_operators()


def _declare_operators() -> None:
    import torch

    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, OperatorsFirst())
