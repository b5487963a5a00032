"""The one lowering of a strategy to a graph of operations, and what a plan tells without being run."""
