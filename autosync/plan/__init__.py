"""Lowers strategies to plans (graphs of operations) and computes bytes, bounds and identities from plans."""
