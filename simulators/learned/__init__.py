"""Simulators that learn from measured trials how to correct the others."""
