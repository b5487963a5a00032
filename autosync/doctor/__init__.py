"""The doctor: watches some steps of stock DDP on a cluster, and explains why a step takes as long as it does.

`rank` runs a script or a task on every rank. Its `watch` notes when passes, messages and updates begin and end.
`gathering` starts the ranks and collects their `evidence`. `timing` derives the parts of a step from the evidence.
`causes` is the table of possible causes. Each cause is a pure function from the evidence to a finding, or to the reason
why it cannot judge. `diagnosis` ranks the findings, `gain` limits what better synchronisation could gain, and `wording`
presents the results to users.
"""
