"""Carries out a plan on one rank, beside the training loop.

`rank_script` says what each operation of this rank waits for, `iterations` counts that down, and `engine` has a thread
for each lane and one for local work. `execution` does the operations: transfers by `wire`, local work by `local`.
A session tells the engine of gradients and steps, and waits at its gates.
"""
