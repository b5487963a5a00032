"""Shapes: how the data of a collective travels over a cluster, as weighted trees over ranks."""
