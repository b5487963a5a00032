"""Training with stages: programs of a model's stages, what crosses between them, and the session that trains them.

The session makes the passes of its stage in the plan's order, in the training thread. Receives are posted ahead, and
sends are waited for only when they must be over, so both overlap compute. Messages among the ranks of a stage are the
engine's, as everywhere.
"""
