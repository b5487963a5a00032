"""The representation of a strategy: build, check, write, compare it, and sample from the space of all."""
