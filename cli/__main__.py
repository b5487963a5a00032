"""`python -m autosync.cli`: the command line where no console script is on the path."""

from autosync.cli.main import main

if __name__ == "__main__":
    main()
