"""The command line: one module a command, nothing but arguments and output."""
