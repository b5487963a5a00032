"""The local operations of a plan: work that a rank does alone, on the tensors of `memory`.

`operations` has one method for each kind of operation; codecs, sparse rows, factors and optimizers have their own
files. The engine's thread for local work calls it through `engine.execution`. Nothing here sends a message.
"""
