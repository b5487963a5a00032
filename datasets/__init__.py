"""Trials as data: the schema of a record, the store, exporters and importers."""
