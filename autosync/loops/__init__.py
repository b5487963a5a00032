"""Serial loops over records: analyses their dependences, schedules them on several ranks, and runs them.

A loop is a Python function of one record that reads and writes rows of tables (`declarations`). `body_reader` finds
these rows in the source. `dependences` tells which records must keep their order. `choosing` finds a schedule under
which ranks never share a row, `proof` checks the schedule on the records, and `rank_program` runs it.
"""
