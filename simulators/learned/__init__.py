"""Simulators that learn from measured trials how far off the others are."""
