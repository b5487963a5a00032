"""Divides a model into stages for a cluster: the problem as numbers, its partitioner, and strategies from divisions."""
