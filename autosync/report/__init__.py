"""The report: one self-contained HTML page about studies, which opens anywhere and contacts nothing."""
