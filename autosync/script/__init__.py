"""The door for unchanged scripts: `DistributedDataParallel` trains by a bundle, and nothing in the script changes.

- `bundles`: the bundles of a launch, and which of them a model is trained by;
- `optimizers`: the optimizers of the process, and which of them a model's parameters are in;
- `stand_in`: what stands in the place of torch's Reducer within a `DistributedDataParallel`;
- `refusals`: what a `DistributedDataParallel` cannot do by a bundle, by name;
- `door`: all that is patched in torch, and put back;
- `program`: a script or a module, run as `python` runs it.
"""
