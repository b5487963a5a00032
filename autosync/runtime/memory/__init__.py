"""The tensors behind a plan's regions on one rank.

`regions` maps a region to the memory that holds it: a gradient, a parameter, or a buffer of a message. `layout` places
regions that are not as long as their parts. `kept_state` describes what outlives a step by its place in the whole
variable, so that any plan can resume from it. `unused_variables` marks gradients of variables that no rank has used.
All other packages here read and write tensors through this one.
"""
