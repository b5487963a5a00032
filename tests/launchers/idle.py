"""A program of ranks that do not train: they tell their environment, wait, or go wrong. It does not import torch."""

# ruff: noqa: T201 - a script reports by printing

import argparse
import os
import signal
import sys
import time

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "AUTOSYNC_NODE", "WISH")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=-1, help="who goes wrong")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--wait", action="store_true")
    chosen = parser.parse_args()
    if int(os.environ["RANK"]) == chosen.rank and chosen.exit:
        sys.exit(chosen.exit)
    if int(os.environ["RANK"]) == chosen.rank and chosen.kill:
        os.kill(os.getpid(), signal.SIGKILL)
    if chosen.wait:
        print(f"waits as process {os.getpid()}")
        time.sleep(600)
    print(" ".join(os.environ.get(name, "-") for name in NAMES))


if __name__ == "__main__":
    main()
