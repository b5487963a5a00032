"""The timeline: an event-driven simulation of a plan."""
