"""`python -m autosync.cli` runs the command line if the console script is not on the path."""

from autosync.cli.main import main

if __name__ == "__main__":
    main()
