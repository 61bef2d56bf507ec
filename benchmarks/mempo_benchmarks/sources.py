"""The source files that decide a result, by their digest: all of ours, and a user's own."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import astuple

from mempo_env.files import digest
from mempo_env.memory.bank import BankConfig

OURS = frozenset({"mempo_env", "mempo_agents", "mempo_trainers", "mempo_benchmarks"})


def folder_digest(folder: Path) -> str:
    """Of all source files in a folder and below, with their names: none can be forgotten."""
    files = sorted(folder.rglob("*.py"))
    return digest(*(part for file in files for part in (str(file.relative_to(folder)), file.read_bytes())))


def code_digest() -> str:
    """Of what plays an episode: the whole of `mempo_env`, and the rollout."""
    return digest(package_digest("mempo_env"), source("mempo_agents.rollout").read_bytes())


def package_digest(package: str) -> str:
    """Of all source files of a package of ours."""
    return folder_digest(source(package).parent)


def source(module: str) -> Path:
    """The file of a module of ours."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin)


# --- A user's own ------------------------------------------------------------------------------------------


def own_digest(names: Iterable[str], things: Iterable[Any]) -> str:
    """Of a user's modules behind some things, with those of theirs that these import: "file=digest" of each.

    Files other than source, such as a prompt in a text file, are the business of `fingerprint`.

    Args:
        names: Names of agents and models; those of the form "module:thing" count.
        things: Objects, functions and classes; of a bank's settings those of that form count, too.
    """
    things = tuple(things)
    settings = (str(value) for one in things if isinstance(one, BankConfig) for value in astuple(one))
    named = [name.partition(":")[0] for name in (*names, *settings) if ":" in name]
    files = own_files([*named, *map(_module, things)])
    return " ".join(
        f"{_place(name, files[name])}={digest(files[name].read_bytes())}" for name in sorted(files)
    )


def changed_files(there: str, here: str) -> list[str]:
    """The files of a user's own in which two fingerprints differ; none if they differ in more than that."""
    one, other = (dict(_OWN.findall(text)) for text in (there, here))
    if _OWN.sub("", there).split() != _OWN.sub("", here).split():
        return []
    return sorted(name for name in one | other if one.get(name) != other.get(name))


_OWN = re.compile(r"(\S+\.py)=(\w+)")


def _place(module: str, file: Path) -> str:
    """The file of a module, from where modules are imported on."""
    path = module.replace(".", "/")
    return f"{path}/__init__.py" if file.name == "__init__.py" else f"{path}.py"


def own_files(modules: Iterable[str]) -> dict[str, Path]:
    """The files, by module, of modules that are not ours and of all that these import of their kind.

    Of what is installed only the packages of the modules themselves count: libraries are no part of an agent.
    """
    waiting = [module for module in modules if _top(module) not in OURS | sys.stdlib_module_names]
    tops = {_top(module) for module in waiting}
    found: dict[str, Path] = {}
    while waiting:
        module = waiting.pop()
        if module in found or not (_top(module) in tops or _is_users(_top(module))):
            continue
        file = _file(module)
        if file is not None:
            found[module] = file
            waiting += _imports(module, file)
    return found


def _module(thing: Any) -> str:
    """The module of a function, a class, or the class of an object."""
    while isinstance(thing, partial):
        thing = thing.func
    named = thing if inspect.isclass(thing) or inspect.isroutine(thing) else type(thing)
    return str(named.__module__)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_users(top: str) -> bool:
    """Whether a package or module lies among a user's files, not among ours or what was installed."""
    if top in OURS | sys.stdlib_module_names:
        return False
    file = _file(top)
    installed = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
    return file is not None and not any(file.is_relative_to(folder) for folder in installed)


def _file(module: str) -> Path | None:
    """The source file of a module; None if there is no such module, or no such file."""
    try:
        loaded = sys.modules.get(module)
        spec = importlib.util.find_spec(module) if loaded is None else loaded.__spec__
    except (ImportError, ValueError):  # a name imported from a module is no module itself
        return None
    origin = getattr(loaded, "__file__", None) if spec is None else spec.origin
    return Path(origin) if origin and origin.endswith(".py") and Path(origin).is_file() else None


def _imports(module: str, file: Path) -> Iterator[str]:
    """All that a module may import, by absolute names; its package among them."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    if package:
        yield package
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package or None)
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
