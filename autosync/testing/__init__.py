"""Fakes and conformance suites for launchers, simulators and proposers, open to third parties."""
