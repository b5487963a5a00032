"""Proposers suggest the next strategies to try. All work from the study's history and keep no other state."""
