"""Tunes a loop: finds the schedule that reaches a loss in the shortest time on a cluster.

`candidates` lists the schedules. `contest` is rank 0's program: it runs one epoch of a few candidates as a sample,
`prediction` tells from it how long all candidates need, and the best ones then run to the loss in turn. `tune` starts
the ranks, and `verdict` has the result in words.
"""
