"""Input pipelines: a torch DataLoader with measured settings, a reader of tar shards, and epochs that lose no example.

Each epoch's order is computed in one process and dealt to workers by batches. So no setting changes which examples a
rank gets, or their order.
"""
