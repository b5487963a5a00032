"""One model in training: the hooks on the user's model and optimizers, and what is refused by name.

`start` compares the ranks, makes the connections and builds a session. `session` tells the engine of gradients and
steps; the files beside it each watch one thing: backward passes, arriving gradients, optimizer steps, parameters whose
update is under way, gradients that belong to the engine. `parallelize`, one room up, is what scripts call.
"""
