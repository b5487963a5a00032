"""Strategies as settings of stock engines: what a user can have without our runtime."""
