"""The classes of operations. Devices differ in how much of their peak rates each class sustains.

Products of matrices and convolutions run at rates of arithmetic, if they have enough of it for each byte. Everything
else (normalisation, activations, look-ups, copies, and the update) takes as long as its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

OperationClass: TypeAlias = Literal[
    "product",
    "batched_product",
    "convolution",
    "convolution_3x3",
    "grouped_convolution",
    "batch_norm",
    "memory",
]
CLASSES: tuple[OperationClass, ...] = get_args(OperationClass)

_PRODUCTS = {"aten::mm", "aten::addmm", "aten::mv", "aten::addmv"}
_BATCHED = {"aten::bmm", "aten::baddbmm"}


def class_of(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OperationClass:
    """Return the class of an operator that torch dispatches with these arguments."""
    schema = function._schema  # noqa: SLF001 - operators give no public access to their schema
    name = schema.name
    if name in _PRODUCTS:
        return "product"
    # Attention is batched products; fused kernels of it are counted as these.
    if name in _BATCHED or "scaled_dot_product" in name:
        return "batched_product"
    if "batch_norm" in name:
        return "batch_norm"
    if "convolution" in name:
        given = dict(zip((one.name for one in schema.arguments), args, strict=False)) | dict(kwargs)
        return _class_of_convolution(given)
    return "memory"


def _class_of_convolution(given: Mapping[str, Any]) -> OperationClass:
    if given["groups"] > 1:
        return "grouped_convolution"
    # Winograd's transformation saves operations of these.
    is_plain = all(step == 1 for step in (*given["stride"], *given["dilation"])) and not given["transposed"]
    return "convolution_3x3" if is_plain and tuple(given["weight"].shape[2:]) == (3, 3) else "convolution"
