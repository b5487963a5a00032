"""One model in training: the hooks on the user's model and optimizers, and the refusal of what they cannot follow.

`start` compares the ranks, makes the connections and builds a session. `session` tells the engine about gradients and
steps. Each file beside it watches one thing: backward passes, arriving gradients, optimizer steps, parameters whose
update is under way, gradients that belong to the engine. Scripts call `parallelize`, one package up.
"""
