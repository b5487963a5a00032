"""The function that every vertex of a kind applies: what the user writes."""

from __future__ import annotations

import torch


class VertexFunction(torch.nn.Module):
    """The function of one kind of vertex. A subclass defines `forward`, and `pull` and `push` where it needs them.

    Every method gets one row for each vertex, and computes each row from that row only. So it does not matter how many
    vertices run together. States of a model have one width; a Tree-LSTM puts its two vectors side by side.

    `pull` and `push` do not read other vertices. They run once for all vertices of a batch, so `pull` is the place for
    products with the inputs, and `push` for classifiers.
    """

    def pull(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what `forward` needs of the vertices' inputs: one row for each vertex. The default is the inputs."""
        return inputs

    def forward(self, pulled: torch.Tensor, children: torch.Tensor) -> torch.Tensor:
        """Return the states of vertices: (vertices, width).

        `pulled` has their rows of `pull`. `children` has the gathered states of their children, in the order in which
        the graph lists them: (vertices, children, width). All vertices of a call have the same number of children.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward(pulled, children)")

    def push(self, states: torch.Tensor) -> torch.Tensor:
        """Return what the model returns for vertices with these states. The default is the states."""
        return states
