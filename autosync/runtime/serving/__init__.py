"""Ranks that only serve: nodes without devices that hold and update variables for the workers.

`serve` is a server's program. `invitations` lets workers find a server, and carries what the first worker tells it;
`first_worker` is the worker's side. `sealed_letters` signs their messages in a shared store, which `rendezvous` finds,
and `state_exchange` carries state for checkpoints. A server runs the same engine as a worker, without a model and
without hooks.
"""
