"""How fast the environment and the advantages are, beside skyrl-gym, gem-llm and verl in one run.

    python -m mempo_benchmarks.speed --out DIR

docs/speed.md says what is measured and how to read it. Peers are installed into virtual environments in the
cache folder; one that cannot be is left out, and the report says why.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mempo_benchmarks.speed import credit, parts
from mempo_benchmarks.speed.peers import PEERS, TRAINERS, PeerError, System, installed, ours
from mempo_benchmarks.speed.report import Part, table
from mempo_benchmarks.speed.work import row, write_searches
from mempo_env.errors import MempoError
from mempo_env.files import atomic_file
from mempo_env.questions.world import synthetic

PASSAGES = 10_000
ENVIRONMENTS = 64
WARM = 50
"""Episodes that every run plays before the clock starts."""


def main(argv: Sequence[str] | None = None) -> int:
    """Install, compare, print, and write DIR/speed.md and DIR/speed.json."""
    parser = argparse.ArgumentParser(prog="python -m mempo_benchmarks.speed", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for speed.md and speed.json")
    parser.add_argument("--repetitions", type=int, default=7, help="runs of every system, in turn")
    parser.add_argument("--episodes", type=int, default=1_500, help="episodes that answer at once")
    parser.add_argument("--searches", type=int, default=300, help="episodes that search, at most 3,000")
    peers = [*PEERS, *TRAINERS]
    parser.add_argument("--peers", nargs="*", choices=peers, default=peers, metavar="NAME")
    options = parser.parse_args(argv)
    try:
        text = compare(options)
    except MempoError as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return 2
    sys.stdout.write(text)
    return 0


def compare(options: argparse.Namespace) -> str:
    """Measure everything; write the report, and return it."""
    systems, notes = [ours()], []
    for name in options.peers:
        say(f"{name}: looking for its virtual environment, else installing it")
        try:
            systems.append(installed(name))
        except PeerError as error:
            notes.append(f"Without {name}: {' '.join(str(error).split())}")
            say(notes[-1])
    before = os.getloadavg()[0]
    measured = measure(options, systems)
    load = f"load {before:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"
    machine = f"{os.cpu_count()} cores of {processor()}, Python {platform.python_version()}, {load}"
    text = report(systems, notes, machine, measured)
    with atomic_file(options.out / "speed.md") as out:
        out.write(text.encode())
    held = {"machine": machine, "systems": systems, "notes": notes, "parts": measured}
    with atomic_file(options.out / "speed.json") as out:
        out.write(msgspec.json.format(msgspec.json.encode(held, enc_hook=str), indent=1))
    return text


def measure(options: argparse.Namespace, systems: Sequence[System]) -> list[Part]:
    """All parts, one after the other."""
    trainers = [systems[0], *(system for system in systems if system.name in TRAINERS)]
    systems = [system for system in systems if system.name not in TRAINERS]
    asked = list(synthetic().split("train"))[: WARM + options.episodes]
    right = [row(question) for question in asked]
    half = [row(question, right=i % 2 == 0) for i, question in enumerate(asked)]
    times = options.repetitions
    parts.inspect(systems[0], half)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "passages"
        searches = write_searches(folder, PASSAGES, WARM + options.searches)
        say("answering")
        measured = [parts.answering("Answer at once, rightly", right, WARM, times, systems)]
        measured += [parts.answering("Answer at once, every other wrong", half, WARM, times, systems)]
        say("searching")
        measured += [parts.searching(searches, folder, WARM, times, systems)]
    say("many environments at once")
    measured += [parts.crowding(ENVIRONMENTS, 6, times, systems)]
    say("advantages")
    measured += [credit.advantages(times, trainers)]
    say("starting")
    return [*measured, *parts.starting(times, systems)]


def report(systems: Sequence[System], notes: Sequence[str], machine: str, measured: Sequence[Part]) -> str:
    """The report in Markdown."""
    versions = [
        f"- {system.name}: {', '.join(f'{name} {version}' for name, version in system.versions.items())}"
        for system in systems
    ]
    lines = ["# Speed, side by side", "", f"- {machine}", *versions, *(f"- {note}" for note in notes), ""]
    return "\n".join([*lines, *(f"{table(part)}\n" for part in measured)])


def processor() -> str:
    """Name of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def say(line: str) -> None:
    """Tell on stderr what is going on."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
