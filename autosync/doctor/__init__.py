"""The doctor: watches some steps of stock DDP on a cluster, and says why a step takes as long as it does.

`rank` runs a script or a task on every rank with a `watch` in it, which notes when passes, messages and updates begin
and end. `gathering` starts the ranks and collects their `evidence`. `timing` derives the parts of a step from it.
`causes` is the table of possible causes: each is one pure function from the evidence to a finding, or to the reason why
it cannot tell. `diagnosis` ranks the findings, `gain` says what better synchronisation could give at most, and
`wording` says all of it to users.
"""
