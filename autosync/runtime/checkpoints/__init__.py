"""Checkpoints: save the state of a training, and resume from it under any plan.

`calls` has `save`, `load` and `consolidate`, which all workers call together. `rank_state` holds one rank's share as
named tensors, `folder` stores the shares on disk, `collected` joins them to whole variables, and `loading` reads a
checkpoint and puts its values in place. `worker_state` gathers the state of one worker; the first worker asks the
servers for theirs.
"""
