"""Strategy builders that reproduce known hand-designed systems, each citing where its rule comes from."""
