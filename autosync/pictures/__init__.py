"""Pictures: plans and timelines as SVG, for people."""
