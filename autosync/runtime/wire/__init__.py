"""Moves bytes between ranks.

`links` holds a session's connections. `transfers` takes part in a plan's transfers: by our own messages (`exchange`, in
pieces that `transfer_pieces` computes) or by the backend's own collectives (`native_collectives`). The engine's lanes
call it through `engine.execution`; the buffers that travel belong to `memory`.
"""
