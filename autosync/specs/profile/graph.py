"""Reads autograd's graph of a step: the operations that used each parameter, its first use, and the rows looked up.

Module hooks see only calls of modules. The graph of the loss shows every use, also of a weight that another module's
code uses (a word embedding as output layer), and it distinguishes look-ups of rows from dense uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

# These operations pass a weight on in another shape or precision: an operation on their result uses the weight.
_TRANSPOSES = {"TBackward0", "TransposeBackward0"}
_HANDED_ON = _TRANSPOSES | {"ToCopyBackward0"}
_EMBEDDINGS = {"EmbeddingBackward0", "EmbeddingBagBackward0"}
_HIDDEN = "hidden"
"""Stands for the operations that use a parameter in a backward pass within the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterUses:
    """The uses of one parameter in one microstep.

    `operations` are autograd's names of the operations that use it. `first_sequence` is the position of the first use
    among autograd's records. `ids` are the rows that each embedding operation looked up, with the operation's padding
    row (-1: none).
    """

    operations: tuple[str, ...]
    first_sequence: int
    ids: tuple[tuple[torch.Tensor, int], ...] = ()

    @property
    def is_embedding(self) -> bool:
        """Whether all uses look up rows, so that all other rows of the gradient are zero."""
        return bool(self.operations) and all(operation in _EMBEDDINGS for operation in self.operations)

    @property
    def looks_up(self) -> bool:
        """Whether any use looks up rows."""
        return any(operation in _EMBEDDINGS for operation in self.operations)


def read_uses(outputs: Sequence[torch.Tensor], names: Mapping[int, str]) -> dict[str, ParameterUses]:
    """Return the uses of each parameter in the making of some tensors, by name.

    `names` maps the `id` of a parameter to its name.

    Parameters whose use is hidden in a custom autograd function (reentrant checkpointing, a compiled graph) are
    missing.
    """
    users = _users([output.grad_fn for output in outputs if output.grad_fn is not None])
    uses = {}
    for node, direct in users.items():
        parameter = getattr(node, "variable", None)
        if parameter is None or id(parameter) not in names:
            continue
        final = [user for node in direct for user in _final_users(node, users)]
        uses[names[id(parameter)]] = ParameterUses(
            operations=tuple(sorted(user.name() for user in final)),
            first_sequence=min(sequence_of(user) for user in direct),
            ids=tuple(_ids(user) for user in final if user.name() in _EMBEDDINGS),
        )
    return uses


def with_hidden_uses(uses: Mapping[str, ParameterUses], ready: Sequence[str]) -> dict[str, ParameterUses]:
    """Return the uses, with a further operation for each parameter whose gradient became ready more than once.

    The graph's own backward pass adds to a gradient once. So another one ran within it, as in reentrant checkpointing,
    and its operations are not in the graph.
    """
    times = Counter(ready)
    return {
        name: replace(use, operations=(*use.operations, _HIDDEN)) if times[name] > 1 else use
        for name, use in uses.items()
    }


def sequence_of(node: Any) -> int:
    """Return the position of a node in autograd's order of records."""
    return int(node._sequence_nr())  # noqa: SLF001 - autograd has no public name for it


def _users(roots: Iterable[Any]) -> dict[Any, list[Any]]:
    """Return each node of the graph with the nodes that used its result, once for each use."""
    users: dict[Any, list[Any]] = {root: [] for root in roots}
    pending = list(users)
    while pending:
        node = pending.pop()
        for used, _ in node.next_functions:
            if used is None:
                continue
            if used not in users:
                users[used] = []
                pending.append(used)
            users[used].append(node)
    return users


def _final_users(node: Any, users: Mapping[Any, list[Any]]) -> list[Any]:
    if node.name() not in _HANDED_ON or not users[node]:
        return [node]
    found = [final for user in users[node] for final in _final_users(user, users)]
    if node.name() in _TRANSPOSES:
        # What looks up rows of a transposed weight uses its columns, and so all of its rows.
        return [node if final.name() in _EMBEDDINGS else final for final in found]
    return found


def _ids(node: Any) -> tuple[torch.Tensor, int]:
    padding = node._saved_padding_idx  # noqa: SLF001 - the graph's saved values are reached like this only
    # "None" is stored as -1 in an unsigned field.
    return node._saved_indices, padding if padding < 2**63 else -1  # noqa: SLF001 - as above


def distinct_rows(ids: tuple[tuple[torch.Tensor, int], ...]) -> torch.Tensor:
    """Return the distinct rows of several look-ups, without padding."""
    rows = [torch.unique(values.detach().cpu()) for values, _ in ids]
    kept = [row[row != padding] for row, (_, padding) in zip(rows, ids, strict=True)]
    distinct: torch.Tensor = torch.unique(torch.cat(kept))
    return distinct
