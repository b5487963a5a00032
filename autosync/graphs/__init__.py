"""Models whose graph differs from example to example: one function for every vertex, run on many vertices at once.

The user writes a vertex function as an nn.Module (`vertex_function`) and gives each example its own graph
(`input_graph`). `vertex_model` runs the function on the graphs of a batch: in groups of vertices that may run together
(`orders`, `order_search`, `schedule`), or one vertex after the other, which defines the result (`naive`).
`choose_policy` measures which order is the fastest. `dealing` divides examples among ranks by cost.
"""
