"""Serial loops over records: what their iterations depend on, a schedule for several ranks, its proof and its run.

A loop is a Python function of one record that reads and writes rows of tables (`declarations`). `body_reader` reads the
rows off its source, `dependences` tells which records may not change places, `choosing` finds a schedule under which
ranks never share a row, `proof` checks that on the records, and `rank_program` runs it.
"""
