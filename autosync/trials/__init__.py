"""Runs strategies on a cluster for some steps and measures them."""
