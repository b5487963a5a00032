"""Checkpoints: what the engine holds of a training, saved, loaded, and brought to the user's optimizer."""
