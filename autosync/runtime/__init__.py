"""Executes a plan on torch.distributed inside a training process.

`parallelize` is the door: it starts a session for a model. The rooms, from the bottom up:

- `memory`: the tensors behind a plan's regions;
- `local`: the operations of a plan that one rank does alone (encoding, merging, updating);
- `wire`: connections between ranks, and the operations that move bytes over them;
- `engine`: the threads that carry out a plan's operations, each as soon as it is ready;
- `serving`: ranks that have no device and only serve, and what the first worker tells them;
- `checkpoints`: saving what a training keeps, and going on from it;
- `stock`: plans that torch's own reducer carries out in the engine's place;
- `session`: one model in training: the hooks on the user's model and optimizers.
"""
