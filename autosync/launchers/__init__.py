"""Starts the ranks of a cluster: one module for each way of reaching its nodes."""
