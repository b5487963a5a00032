"""Checkpoints: what a training keeps, and how it goes on from it under any plan.

`calls` has `save`, `load` and `consolidate`, which all workers call together. `rank_state` is one rank's share as named
tensors, `folder` lays the shares on disk, `collected` puts whole variables together again, `loading` prepares them and
puts them in place. Sessions say what there is to save (`worker_state`); servers are asked by the first worker.
"""
