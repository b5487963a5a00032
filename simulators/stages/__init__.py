"""Predicts strategies with stages by playing the passes and the sends of their plans."""
