"""The command line. Each command has a module, which handles only its arguments and its output."""
