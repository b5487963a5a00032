"""How far a search trusts predictions: what further trials are expected to bring, and when they are not worth it."""
