"""The lowering compiled: strategies as columns become plans as columns, thousands a second."""
