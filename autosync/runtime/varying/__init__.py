"""Steps that use different parameters: which gradients need not travel, predicted, agreed and corrected.

`called_modules` notes the modules that a forward pass calls; their parameters are predicted to be used. When backward
begins, all ranks merge their predictions (`bitmaps`), and what no rank predicts stays where it is: see
`memory.travelling`. When backward ends, the ranks tell one another of gradients that came although no rank waited for
them, and sum those then (`late_gradients`). `may_stay` finds the variables of a plan for which all this is possible,
and `varying_use` does it step by step. A session calls it at the beginning and at the end of a backward pass.
"""
