"""Fakes and conformance suites for launchers, simulators, proposers, presets, synchronisers and trials.

Third parties can use them too.
"""
