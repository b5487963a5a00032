"""Executes a plan on torch.distributed inside a training process.

`parallelize` is the entry point: it starts a session for a model. The packages, from the bottom up:

- `memory`: the tensors behind a plan's regions;
- `local`: the operations of a plan that one rank does alone (encoding, merging, updating);
- `wire`: connections between ranks, and the operations that move bytes over them;
- `engine`: the threads that carry out a plan's operations, each as soon as it is ready;
- `serving`: ranks that have no device and only serve, and their communication with the first worker;
- `checkpoints`: saving the state of a training, and resuming from it;
- `stock`: plans that torch's own reducer carries out instead of the engine;
- `varying`: gradients that do not travel, in steps that do not use their parameters;
- `session`: one model in training: the hooks on the user's model and optimizers.
"""
