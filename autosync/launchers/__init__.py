"""Starts ranks: `request` holds the common interface, and each launcher has a module."""
