"""Check scoring, sampling and training of language models on one CUDA GPU: `make gpu-check`.

    python benchmarks/mempo_benchmarks/gpu_check [--device cpu --size tiny] [--out FILE] [--wheels FOLDER]

Nothing is installed: what this Python lacks is unpacked from wheels beside it, so a machine without a network
needs torch, transformers and this repository. Without a GPU it says SKIP. docs/speed.md says what is checked.

This file knows the standard library only, until what it needs is there.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NEEDED = ("transformers", "msgspec", "gymnasium", "numpy", "rich", "safetensors")


def main(argv: Sequence[str] | None = None) -> int:
    """Check; 0 if all is well or there is no device, 1 if something failed, 2 if what it needs is missing."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu")
    parser.add_argument("--size", choices=("full", "tiny"), default="full", help="of the networks")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"), help="file for all figures")
    parser.add_argument("--wheels", type=Path, default=ROOT / "runs" / "gpu-check" / "wheels")
    parser.add_argument("--seconds", type=float, default=450.0, help="that all of it may take")
    options = parser.parse_args(argv)
    if reason := unfit(options.device):
        sys.stdout.write(f"SKIP: {reason}\n")
        return 0
    with tempfile.TemporaryDirectory() as site:
        sys.path[:0] = [str(ROOT / part) for part in ("", "agents", "trainers", "benchmarks")]
        sys.path.append(site)  # last: what is here already stays
        unpack(sorted(options.wheels.glob("*.whl")), Path(site))
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            sys.stderr.write(
                f"wanted {', '.join(missing)}, found neither here nor in {options.wheels}: run "
                "`make gpu-check` where there is a network, and bring the folder along\n"
            )
            return 2
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("MEMPO_CACHE", str(Path(site) / "cache"))
        from mempo_benchmarks.gpu_check.checks import run

        return run(options.device, options.size, options.out, options.seconds)


def unfit(device: str) -> str:
    """Why there is nothing to check with; empty if there is."""
    if find_spec("torch") is None:
        return "no CUDA device (torch is not installed)"
    import torch

    return "" if device == "cpu" or torch.cuda.is_available() else "no CUDA device"


def unpack(wheels: Sequence[Path], site: Path) -> None:
    """Unpack those wheels of which no module can be imported yet."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as held:
            tops = {name.split("/")[0] for name in held.namelist()}
            modules = {
                top.split(".")[0] for top in tops if not top.endswith((".dist-info", ".data", ".libs"))
            }
            if not any(find_spec(module) for module in modules):
                held.extractall(site)


if __name__ == "__main__":
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    sys.exit(main())
