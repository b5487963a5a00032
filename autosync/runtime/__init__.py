"""Executes a plan on torch.distributed inside a training process."""
