"""The tensors behind a plan's regions on one rank.

`regions` maps a region to the memory that holds it: a gradient, a parameter, or a buffer of a message. `kept_state`
names what outlives a step by its place in the whole variable, so that any plan can go on from it. `unused_variables`
marks gradients of variables that no rank has used. All other rooms read and write tensors through this one.
"""
