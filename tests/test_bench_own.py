"""What a run is made of beside its data: a changed source, ours or a user's own, is another run."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mempo_benchmarks.sources as sources
import mempo_env
from mempo_benchmarks.results import Plan, Row, read_rows
from mempo_benchmarks.run import bench, make_plan
from mempo_benchmarks.sources import folder_digest, own_files
from mempo_env.errors import ResultsError

MADE = """
from mempo_agents.models.table import make_model
from mempo_agents.rounds import ENDS, ModelAgent, composed
{imports}

def play(context):
    yield composed(context.segments, ENDS)
    return "<answer>one</answer>"

def agent():
    return ModelAgent(name="mine", play={play}, model={model}, env_kwargs={kwargs})
"""
SCRIPTED = 'make_model("scripted")'
SIMPLE = """
from mempo_agents.scripted import Scripted

def agent():
    return Scripted(write=lambda context: "<answer>one</answer>", name="mine", fingerprint="mine")
"""
PLAY = """
def play(context):
    return "<answer>one</answer>"
    yield
"""
MODEL = """
from mempo_env.types import Call

class Model:
    name = fingerprint = "m"
    def generate(self, prompts):
        return [Call(segments=prompt.segments, output="<answer>one</answer>") for prompt in prompts]
"""
MEMORY = """
class Notes:
    def __init__(self, state=None):
        self.notes = state or []
    def write(self, text, round):
        self.notes.append("one")
    def show(self):
        return "".join(self.notes)
    def state(self):
        return self.notes
"""
EMBED = """
import numpy as np

def embed(texts):
    one = 1.0
    return np.full((len(texts), 3), one)
"""
BANK = "from mempo_env.memory.bank import BankConfig"


def made(imports: str = "", play: str = "play", model: str = SCRIPTED, kwargs: str = "{}") -> str:
    return MADE.format(imports=imports, play=play, model=model, kwargs=kwargs)


OWN = {
    "an agent of our kind": ({"own_agent": made()}, "own_agent"),
    "a function of one": ({"own_agent": SIMPLE}, "own_agent"),
    "what it does, from a module of its own": (
        {"own_agent": made("from own_play import play as other", "other"), "own_play": PLAY},
        "own_play",
    ),
    "a prompt, a text, from a module of its own": (
        {"own_agent": made("from own_prompts import PROMPT"), "own_prompts": 'PROMPT = "one"'},
        "own_prompts",
    ),
    "a module that it imports when it plays": (
        {"own_agent": made().replace("    yield", "    import own_late\n    yield"), "own_late": "one = 1"},
        "own_late",
    ),
    "a module two imports away, in a package": (
        {
            "own_agent": made("import own_parts.first"),
            "own_parts/__init__": "",
            "own_parts/first": "from . import second",
            "own_parts/second": "one = 1",
        },
        "own_parts/second",
    ),
    "its own model": (
        {"own_agent": made("from own_model import Model", model="Model()"), "own_model": MODEL},
        "own_model",
    ),
    "its own memory": (
        {"own_agent": made("from own_memory import Notes", kwargs='{"memory": Notes}'), "own_memory": MEMORY},
        "own_memory",
    ),
    "its own memory, by name": (
        {"own_agent": made(kwargs='{"memory": "own_memory:Notes"}'), "own_memory": MEMORY},
        "own_memory",
    ),
    "the similarity of its bank": (
        {
            "own_agent": made(BANK, kwargs='{"memory": BankConfig(embed="own_embed:embed")}'),
            "own_embed": EMBED,
        },
        "own_embed",
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to import modules from, which are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def plan(agent: str = "own_agent:agent", **kwargs: str) -> Plan:
    return make_plan("synthetic", [agent], episodes=2, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", OWN)
def test_a_run_is_not_gone_on_with_after_a_change_of_an_agents(what: str, folder: Path) -> None:
    files, changed = OWN[what]
    write(folder, files)
    bench(plan(), folder / "run")
    write(folder, files)
    bench(plan(), folder / "run")  # nothing has changed
    write(folder, {changed: f"{files[changed]}\nchanged = 1\n"})
    with pytest.raises(ResultsError, match=f"agent own_agent:agent: {changed}.py changed since"):
        bench(plan(), folder / "run")


def test_a_run_is_not_gone_on_with_after_a_change_of_what_makes_its_model(folder: Path) -> None:
    """The model may be of any class: its own module decides."""
    makes = "from own_model import Model\n\none = 1\n\ndef make():\n    return Model()\n"
    write(folder, {"own_model": MODEL, "own_makes": makes})
    bench(plan("mempo", model="own_makes:make"), folder / "run")
    write(folder, {"own_makes": makes.replace("one", "two")})
    other = plan("mempo", model="own_makes:make")
    with pytest.raises(ResultsError, match=r"agent mempo: own_makes\.py changed since"):
        bench(other, folder / "run")
    assert [arm.fingerprint for arm in other.arms if arm.agent == "oracle"] == [
        arm.fingerprint for arm in plan("mempo").arms if arm.agent == "oracle"
    ]


def test_the_memories_of_the_page_hold_what_is_needed(folder: Path) -> None:
    """Shown without tags, their numbered lines were taken for questions: EM 0."""
    page = (Path(__file__).parents[1] / "docs" / "memory.md").read_text()
    (latest,) = re.findall(r"write_text\('''\n(.*?)'''\)", page, re.DOTALL)
    (three,) = re.findall(r"^(class LastThree:.*?)^env", page, re.DOTALL | re.MULTILINE)
    latest = latest.replace("\\\\", "\\")
    head, _, rest = latest.partition("class Latest")
    agent = rest[rest.index("def agent") :].replace("latest:Latest", "own_three:LastThree")
    write(folder, {"own_latest": latest.replace("latest:", "own_latest:"), "own_three": head + three + agent})
    made = make_plan("synthetic", ["own_latest:agent", "own_three:agent"], episodes=4, objectives=2)
    bench(made, folder / "run")
    found = [row for row in read_rows(folder / "run", made, Row) if row.agent.startswith("own_")]
    assert [row.em for row in found] == [1.0] * 8


def test_of_libraries_and_of_ours_nothing_is_an_agents_own(folder: Path) -> None:
    imports = (
        "import numpy.linalg, json\nimport gymnasium as gym\nfrom mempo_env import tokens\nimport own_gone"
    )
    write(folder, {"own_agent": imports, "own_other": ""})
    assert own_files(["own_agent", "mempo_agents.mem1", "json", "own_gone"]) == {
        "own_agent": folder / "own_agent.py"
    }


def test_a_new_file_of_the_environment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is called, and wherever it lies; a file renamed, likewise."""
    copy = tmp_path / "mempo_env"
    shutil.copytree(Path(mempo_env.__file__).parent, copy, ignore=shutil.ignore_patterns("*.pyc"))
    before = sources.code_digest()
    assert folder_digest(copy) == sources.package_digest("mempo_env")
    ours = sources.source
    monkeypatch.setattr(
        sources, "source", lambda name: copy / "__init__.py" if name == "mempo_env" else ours(name)
    )
    assert sources.code_digest() == before
    (copy / "memory" / "another.py").write_text("")
    added = sources.code_digest()
    (copy / "memory" / "another.py").rename(copy / "memory" / "renamed.py")
    renamed = sources.code_digest()
    (copy / "memory" / "renamed.py").write_text("x = 1\n")
    assert len({before, added, renamed, sources.code_digest()}) == 4
