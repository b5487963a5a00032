"""The representation of strategies: builds, checks, writes and compares them, and samples from their space."""
