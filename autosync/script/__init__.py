"""The script door: `DistributedDataParallel` in an unchanged script trains with a bundle.

- `bundles` loads the bundles of a launch and finds the one that fits a model.
- `optimizers` records the optimizers of the process and finds those of a model.
- `stand_in` replaces torch's Reducer in a `DistributedDataParallel`.
- `refusals` lists the uses of `DistributedDataParallel` that a bundle cannot serve.
- `door` patches torch and restores it.
- `switching` and `switching_door` do the same for a script whose strategy changes between two of its steps.
- `step_meter` tells where steps begin and measures them, with `reserves`: the batches that loaders have ready.
- `observing` and `gradient_uses` make a model spec of the first steps of a script.
- `program` runs a script or a module as `python` does.
"""
