"""What moves bytes between ranks.

`links` holds a session's connections, `transfers` takes part in a plan's transfers: by messages of ours (`exchange`,
in pieces that `transfer_pieces` computes) or by the backend's own collectives (`native_collectives`). The engine's
lanes call it through `engine.execution`; the buffers that travel are those of `memory`.
"""
