"""The command line: one module for each command, with only its arguments and output."""
