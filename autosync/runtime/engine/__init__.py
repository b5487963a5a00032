"""Carries out a plan on one rank, beside the training loop.

`rank_script` lists what each operation of this rank waits for, `iterations` counts these waits down, and `engine` has
one thread for each lane and one for local work. `execution` does the operations: transfers through `wire`, local work
through `local`. `device` orders work on a GPU, and `trace` writes a timeline. A session tells the engine about
gradients and steps, and waits at its gates.
"""
