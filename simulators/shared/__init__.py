"""The shared parts of simulators: costs, classes of ranks, the load of transfers on links, the costs of shapes."""
