"""The compiled lowering: turns columns of strategies into columns of plans, thousands a second."""
