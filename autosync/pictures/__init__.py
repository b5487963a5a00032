"""Pictures: plans and timelines as SVG."""
