"""Writes strategies as settings of stock engines, for users who do not use our runtime."""
