"""The preset of Parallax: parameter servers for sparse gradients, all-reduce for dense gradients."""

from __future__ import annotations

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.parts import parts_of
from autosync.strategy.presets.common import ServerNodes, travels_as_rows
from autosync.strategy.presets.options import count_option
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce


def parallax(model: ModelSpec, cluster: ClusterSpec, *, chunk_size: int = 128) -> Strategy:
    """Rows of embeddings through parameter servers, dense gradients by all-reduce in groups of `chunk_size` variables.

    A model without sparse gradients uses only all-reduce, as in Parallax itself. A group has consecutive variables of
    one dtype in the order of declaration. Embeddings are not cut; each is on the server that would finish it first.

    Source: Kim et al., "Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks", EuroSys 2019 (the
    hybrid architecture); groups and placement as in AutoDist's `Parallax` (autodist/strategy/parallax_strategy.py).
    """
    size = count_option("chunk_size", chunk_size)
    servers = ServerNodes(model, cluster)
    rows: list[Message] = []
    groups: dict[tuple[int, str], list[Variable]] = {}
    for index, variable in enumerate(model.variables):
        if travels_as_rows(variable, model):
            rows.append(servers.message(parts_of(variable, None)[0]))
        else:
            # AutoDist also counts sparse variables in the size of a group.
            groups.setdefault((index // size, variable.dtype), []).append(variable)
    dense = (Message(parts=tuple(v.name for v in group), synchroniser=AllReduce()) for group in groups.values())
    return Strategy(messages=(*rows, *dense))
