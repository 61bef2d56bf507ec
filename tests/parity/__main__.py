"""Compare ours with verl's and TRL's own functions, in a virtual environment of their own: `make parity`.

    python tests/parity VENV

Needs nothing but the standard library. Where the environment cannot be installed it says so in one line and
ends with 0; a disagreement ends with 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INSTALLS = (
    ["-r", str(HERE / "requirements.txt")],
    ["--no-deps", "verl==0.9.1"],
    ["-e", str(ROOT)],
)
PATIENCE_S = 1800.0
"""Seconds that one installation may take."""


def main(folder: Path) -> int:
    """Install what is missing, then run `compare.py` there."""
    python = folder / "bin" / "python"
    try:
        install(folder, python)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        sys.stdout.write(
            f"parity: skipped, for {folder} cannot be installed: {said.strip().splitlines()[-1]}\n"
        )
        return 0
    quiet = {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.run([python, HERE / "compare.py"], env={**os.environ, **quiet}).returncode


def install(folder: Path, python: Path) -> None:
    """Make the environment, unless it was finished with these very versions."""
    done, wanted = folder / ".parity", f"{(HERE / 'requirements.txt').read_text()}{INSTALLS}{sys.version}"
    if done.is_file() and done.read_text() == wanted:
        return
    sys.stderr.write(f"parity: installing verl and TRL into {folder}; this takes minutes\n")
    venv.create(folder, clear=True, with_pip=True)
    for what in INSTALLS:
        pip = [str(python), "-m", "pip", "install", "--quiet", *what]
        subprocess.run(pip, check=True, text=True, stderr=subprocess.PIPE, timeout=PATIENCE_S)
    imports = [str(python), "-W", "ignore", "-c", "import verl.trainer.ppo.core_algos, trl, mempo_trainers"]
    subprocess.run(imports, check=True, text=True, stderr=subprocess.PIPE, timeout=PATIENCE_S)
    done.write_text(wanted)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/parity VENV")
    sys.exit(main(Path(sys.argv[1])))
