"""The systems that are compared: ours, and peers, each in a virtual environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from msgspec import Struct

from mempo_env.errors import MempoError
from mempo_env.files import atomic_file, cache_folder

HOST = Path(__file__).parent / "players" / "host.py"
PATIENCE_S = 900.0
"""Seconds that an installation or an order may take."""

_VERSIONS = (
    "import json, importlib.metadata as m; print(json.dumps({d.name: d.version for d in m.distributions()}))"
)


class PeerError(MempoError):
    """A peer that cannot be installed, or does not do what it is told."""


class System(Struct, frozen=True):
    """A system and how to run it.

    Attributes:
        name: What the tables call it.
        python: The interpreter of its virtual environment.
        player: The module that plays for it.
        imports: What is imported to use it.
        versions: Of what matters in its environment.
    """

    name: str
    python: Path
    player: str
    imports: str
    versions: dict[str, str]


class Recipe(Struct, frozen=True):
    """How to install a peer: what pip is given, player and imports as in `System`, versions to tell.

    `bare` is installed without what it asks for, before the rest.
    """

    requirements: tuple[str, ...]
    player: str
    imports: str
    told: tuple[str, ...]
    bare: tuple[str, ...] = ()


PEERS = {
    "skyrl-gym": Recipe(
        ("skyrl-gym==0.4.0", "requests==2.34.2"),
        "play_skyrl",
        "skyrl_gym",
        ("skyrl-gym", "requests"),
    ),
    "gem-llm": Recipe(
        (
            "gem-llm==0.1.0",
            "datasets==5.2.0",
            "requests==2.34.2",
        ),  # it needs the last two and says so nowhere
        "play_gem",
        "gem.envs.qa_env",
        ("gem-llm", "datasets", "requests", "msgspec"),
    ),
}

TRAINERS = {
    "verl": Recipe(
        (
            "torch==2.13.0",
            "transformers==5.10.4",
            "tensordict==0.10.0",
            "ray==2.60.0",
            "omegaconf==2.4.0",
            "codetiming==1.4.0",
        ),
        "play_verl",
        "verl.trainer.ppo.core_algos",
        ("verl", "torch", "numpy"),
        bare=("verl==0.9.1",),  # what it asks for is a GPU's
    ),
}
"""Peers whose advantages are compared, not their environments."""

LOOPS = {
    "trl": Recipe(
        (
            "trl==1.16.0",
            "torch==2.13.0",
            "transformers==5.24.0",
            "datasets==5.2.0",
            "accelerate==1.15.0",
        ),
        "play_trl",
        "trl",
        ("trl", "torch", "transformers", "accelerate"),
    ),
}
"""Peers whose training of language models is compared."""


_OURS = ("mempo", "gymnasium", "numpy", "msgspec", "tantivy", "starlette", "uvicorn")


def ours(told: tuple[str, ...] = _OURS) -> System:
    """Our own system, in this environment; `told` are the packages whose versions matter."""
    python = Path(sys.executable)
    player = "mempo_benchmarks.speed.players.play_mempo"
    return System("mempo", python, player, "mempo_env", _versions(python, told))


def installed(name: str) -> System:
    """A peer, in the virtual environment that is kept for it; made the first time.

    Raises:
        PeerError: if it cannot be installed, or does not start.
    """
    recipe = (PEERS | TRAINERS | LOOPS)[name]
    folder = cache_folder() / "speed" / (recipe.bare + recipe.requirements)[0].replace("==", "-")
    python, note = folder / "bin" / "python", folder / "requirements.json"
    wanted = json.dumps([*recipe.bare, *recipe.requirements, sys.version])
    if not note.is_file() or note.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=True)
        if recipe.bare:
            _run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", *recipe.bare])
        _run([str(python), "-m", "pip", "install", "--quiet", *recipe.requirements])
        with atomic_file(note) as out:  # last: without it the folder is made anew
            out.write(wanted.encode())
    system = System(name, python, recipe.player, recipe.imports, _versions(python, recipe.told))
    order(system, "start")
    return system


def order(system: System, do: str, *, cache: Path | None = None, **arguments: Any) -> Any:
    """Let a system carry out an order in a fresh process; see `players/host.py` for what it may be.

    Args:
        system: Which.
        do: The function of its player.
        cache: Cache folder of ours for this process; None: the usual one.
        arguments: "passes" and "warm" are the host's, all else is the function's.

    Raises:
        PeerError: if it fails; with the last line of what it said.
    """
    own = {key: arguments.pop(key) for key in ("passes", "warm") if key in arguments}
    asked = json.dumps({"do": do, "with": arguments, **own})
    environment = dict(os.environ) if cache is None else {**os.environ, "MEMPO_CACHE": str(cache)}
    return json.loads(_run([str(system.python), str(HOST), system.player], asked, environment))


def _versions(python: Path, told: tuple[str, ...]) -> dict[str, str]:
    found = json.loads(_run([str(python), "-c", _VERSIONS]))
    return {name: found[name] for name in told}


def _run(command: list[str], text: str = "", environment: dict[str, str] | None = None) -> str:
    """The output of a command; PeerError with the last line of its errors if it fails."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=PATIENCE_S, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerError(f"{command[0]}: {error}") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise PeerError(f"{' '.join(command[:4])}: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout
