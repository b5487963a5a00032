"""Ranks that only serve: nodes without devices that hold and update variables for the workers.

`serve` is a server's program. `invitations` is how workers find a server and what the first worker tells it;
`first_worker` is the worker's side. A server runs the same engine as a worker, without a model and without hooks.
"""
