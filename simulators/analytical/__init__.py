"""The analytical simulator: closed-form prices of messages, scheduled in one pass, for very many strategies."""
