"""Cluster files, model specs and search settings that ship with the package."""
