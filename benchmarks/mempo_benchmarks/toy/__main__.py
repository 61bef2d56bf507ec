"""Run an experiment on the toy task: `python -m mempo_benchmarks.toy claim | map --out FOLDER`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mempo_benchmarks.toy.claim import claim
from mempo_benchmarks.toy.map import draw_map


def main() -> None:
    """Read the arguments and run; the tables go to stdout as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m mempo_benchmarks.toy", description=__doc__)
    parser.add_argument("what", choices=["claim", "map"])
    parser.add_argument("--out", type=Path, required=True, help="folder; an unfinished one is gone on with")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    args = parser.parse_args()
    run = {"claim": claim, "map": draw_map}[args.what]
    sys.stdout.write(run(args.out, args.jobs))


if __name__ == "__main__":
    main()
