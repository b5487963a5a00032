"""What learned simulators see of a strategy for a model on a cluster: named numbers that mean the same everywhere."""
