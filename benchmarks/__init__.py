"""Measurements by question: a folder each, whose README says how to run it and where the result stands."""
