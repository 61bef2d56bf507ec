"""What the calls of each agent write, as the trainer takes it: memory, thought, search, answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from llm_help import chatting, needs_transformers
from mempo_agents.base import Context
from mempo_agents.models.base import ModelError, Prompt
from mempo_agents.models.scripted import ScriptedModel
from mempo_agents.rounds import ENDS, ModelAgent, Round, as_shown, one_call
from mempo_agents.table import AGENTS, make_agent
from mempo_env.types import Call, Episode, Invalid, Segment
from mempo_trainers import credit
from mempo_trainers.credit.data import ANSWER, CALL, MEM, THINK
from mempo_trainers.episodes import from_episodes
from mempo_trainers.llm.settings import Task
from mempo_trainers.policies.base import Rollouts
from mempo_trainers.text import play

needs_transformers()

from mempo_trainers.policies.huggingface.tokenizer import ChatTokenizer  # noqa: E402

TOKENIZER = ChatTokenizer(chatting())
END = chatting().eos_token_id
FORGETFUL = ["react", "window", "no_memory", "selfask"]
KEEPING = [
    *("mempo", "bank", "rag_memory", "amem", "mem0", "mem1"),
    *("memagent", "memsearcher", "iterresearch", "resum(150)", "paging(150)"),
]
SEPARATE = ["rag_memory", "amem", "mem0", "memagent", "memsearcher", "resum(150)", "paging(150)"]
"""Those that write their memory in calls of its own."""
LATER = ["amem", "mem0"]
"""Those that store in the next round what they extract in one."""


class Exact:
    """The scripted model, with ids; it may write something of its own in calls that stop at a text."""

    name = fingerprint = "exact"

    def __init__(self, **instead: str | Callable[[Prompt, Call], str]) -> None:
        self.prompts: list[Prompt] = []
        self.instead = instead

    def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
        self.prompts += prompts
        return [self._call(prompt) for prompt in prompts]

    def _call(self, prompt: Prompt) -> Call:
        (call,) = ScriptedModel().generate([prompt])
        assert isinstance(call, Call)
        kind = "memory" if prompt.stop == ("</mem>",) else "act"
        instead = self.instead.get(kind, call.output)
        output = instead if isinstance(instead, str) else instead(prompt, call)
        ids = (*TOKENIZER.encode(output), END)
        return Call(
            segments=prompt.segments,
            output=output,
            prompt_ids=TOKENIZER.chat(prompt),
            output_ids=ids,
            logprobs=(-0.5,) * len(ids),
            finish_reason="stop",
        )


def games(name: str, model: Exact, times: int = 1) -> list[Episode]:
    task = Task(objectives=2, sets=2, environment={"max_rounds": 10})
    return play(make_agent(name, model=model), task.asked("train") * times, task.env_kwargs("train"), seed=0)


def test_every_agent_that_asks_a_model_is_here() -> None:
    assert {name.partition("(")[0] for name in KEEPING + FORGETFUL} == AGENTS.keys() - {
        "empty",
        "random",
        "oracle",
    }


@pytest.mark.parametrize("name", KEEPING + FORGETFUL)
def test_contexts_are_what_the_model_was_asked_byte_for_byte(name: str) -> None:
    model = Exact()
    rolled = from_episodes(games(name, model), TOKENIZER)
    asked = sorted(TOKENIZER.chat(prompt) for prompt in model.prompts)
    assert sorted(tuple(context.tolist()) for context in rolled.contexts) == asked


@pytest.mark.parametrize("name", KEEPING)
def test_what_becomes_memory_has_its_role_and_its_credit(name: str) -> None:
    played = games(name, Exact(), times=2)
    rolled = from_episodes(played, TOKENIZER)
    data = rolled.data
    memory_R = np.zeros(len(data.number_R), bool)
    memory_R[data.round_B[(data.roles_BK == MEM).any(1)]] = True
    assert memory_R.any() and rolled.extra["memory_length"] > 0
    chance = np.random.default_rng(0)
    scores = {name: -chance.random((len(memory_R), 2)) for name in ("memory_logp_RJ", "history_logp_RJ")}
    taught = msgspec.structs.replace(data, **scores)
    plain, own = (credit.make(one)(taught).advantages_BK for one in ("grpo", "mempo"))
    later_B = data.number_R[data.round_B] >= 2
    assert ((own != plain) == ((data.roles_BK == MEM) & later_B[:, None])).all()
    assert (own != plain).any()


@pytest.mark.parametrize("name", SEPARATE)
def test_calls_that_write_memory_are_memory_and_the_acting_one_acts(name: str) -> None:
    played = games(name, Exact())
    rolled = from_episodes(played, TOKENIZER)
    calls = [call for episode in played for round in episode.rounds for call in round.calls]
    texts = [[TOKENIZER.decode([id]) for id in row] for row in rolled.responses.tokens_BK.tolist()]
    writing = 0
    for call, roles, pieces in zip(calls, rolled.responses.roles_BK.tolist(), texts, strict=True):
        n = len(call.output_ids)
        if call.role == "mem":
            writing += 1
            assert set(roles[:n]) == {MEM}, call.output
        elif not (name in LATER and "</mem>" in call.output):
            told = "".join(piece for piece, role in zip(pieces, roles, strict=True) if role in (CALL, ANSWER))
            assert told.strip().startswith(("<search>", "<answer>")) and told in call.output
    assert writing


@pytest.mark.parametrize("name", FORGETFUL)
def test_what_is_thrown_away_is_thought(name: str) -> None:
    model = Exact(act="<mem> gone </mem><search> Ines Calder </search>")
    played = games(name, model)
    rolled = from_episodes(played, TOKENIZER)
    assert rolled.extra["memory_length"] == 0
    assert set(np.unique(rolled.data.roles_BK)) <= {0, THINK, CALL}


@pytest.mark.parametrize("name", ["memagent", "memsearcher"])
def test_a_call_is_memory_where_its_tag_stands(name: str) -> None:
    model = Exact(memory="so:<mem> noted </mem>", act="<search> Ines Calder </search>")
    rolled = from_episodes(games(name, model), TOKENIZER)
    found = 0
    for roles, ids in zip(rolled.data.roles_BK, rolled.responses.tokens_BK, strict=True):
        written = {role: TOKENIZER.decode(ids[roles == role].tolist()) for role in (THINK, MEM)}
        if written[THINK] == "so:":
            found += 1
            assert written[MEM] == "<mem> noted </mem>"
    assert found


@pytest.mark.parametrize("name", SEPARATE)
def test_in_a_round_that_cannot_be_read_nothing_is_memory(name: str) -> None:
    acted: list[Prompt] = []

    def act(prompt: Prompt, call: Call) -> str:
        acted.append(prompt)
        return call.output if len(acted) <= 2 else "unreadable"  # of two episodes

    model = Exact(act=act)
    played = games(name, model)
    rolled = from_episodes(played, TOKENIZER)
    unread = [isinstance(round.action, Invalid) for episode in played for round in episode.rounds]
    rounds = [round for episode in played for round in episode.rounds]
    written = [
        call
        for round, no in zip(rounds, unread, strict=True)
        for call in round.calls
        if no and call.role == "mem"
    ]
    assert written or name in LATER
    assert not (rolled.data.roles_BK[np.array(unread)[rolled.data.round_B]] == MEM).any()


@pytest.mark.parametrize("name", LATER)
def test_what_is_stored_a_round_later_is_thought_now(name: str) -> None:
    """The memory after the round does not hold it, so what that memory is worth says nothing of it."""
    for episode in games(name, Exact()):
        for round in episode.rounds:
            for call in round.calls:
                told = call.segments[0].text if isinstance(call.segments[0], Segment) else ""
                assert call.role == "think" or not told.startswith(("Below are a question", "Write the key"))


@pytest.mark.parametrize("name", SEPARATE)
def test_a_call_that_writes_a_memory_of_its_own_still_acts(name: str) -> None:
    """Its tags are made inert, and the search behind them was thought."""
    model = Exact(act="<mem> mine </mem><memory_write> mine </memory_write><search> Ines Calder </search>")
    rolled = from_episodes(games(name, model), TOKENIZER)
    assert (rolled.data.roles_BK == CALL).any()


def test_episodes_of_before_have_calls_that_are_thought() -> None:
    (episode, *_) = games("memagent", Exact())
    held: Any = msgspec.to_builtins(episode)
    for round in held["rounds"]:
        for call in round["calls"]:
            del call["role"]
    old = msgspec.convert(held, Episode)
    assert {call.role for round in old.rounds for call in round.calls} == {"think"}


# --- What is scored as the memory in force ----------------------------------------------------------------


@pytest.mark.parametrize("name", KEEPING)
def test_what_is_scored_is_the_memory_in_force(name: str) -> None:
    """Of a bank the texts of its entries, not the operation that was written last."""
    played = games(name, Exact())
    rounds = [round for episode in played for round in episode.rounds]
    views = from_episodes(played, TOKENIZER).memory_views.rows
    scored = 0
    for round, view in zip(rounds, views, strict=True):
        if view is not None and round.memory:
            text = TOKENIZER.decode(view.context.tolist())
            assert all(line.strip() in text for line in round.memory.splitlines())
            scored += 1
    assert scored > 3


class Appends:
    """A memory of a user's own that keeps all that is written."""

    def __init__(self, state: list[str] | None = None) -> None:
        self.kept = list(state or [])

    def state(self) -> list[str]:
        return self.kept

    def write(self, text: str, round: int) -> None:
        self.kept.append(text)

    def show(self) -> str:
        return "\n".join(["<mem>", *self.kept, "</mem>"]) if self.kept else ""


def test_all_of_a_memory_of_ones_own_is_scored() -> None:
    numbers = iter(range(100))
    model = Exact(act=lambda *_: f"<mem> fact {next(numbers)} </mem><search> x </search>")
    agent = ModelAgent(name="mine", play=one_call, model=model, env_kwargs={"memory": Appends})
    task = Task(objectives=1, sets=1, environment={"max_rounds": 3})
    rolled = from_episodes(play(agent, task.asked("train"), task.env_kwargs("train"), 0), TOKENIZER)
    first, _ = (TOKENIZER.decode(view.context.tolist()) for view in rolled.memory_views if view is not None)
    assert first.count("\n<mem>\nfact 0\nfact 1\n</mem>\n") == 1 and "<mem>\n<mem>" not in first


def test_an_entry_of_a_bank_can_not_act_where_it_is_scored() -> None:
    act = "<memory_write> a <answer> Z </answer> </mem> </memory_write><search> x </search>"
    views = from_episodes(games("bank", Exact(act=act)), TOKENIZER).memory_views
    texts = [TOKENIZER.decode(view.context.tolist()) for view in views if view is not None]
    assert texts and all("\n<mem>\na \u2039answer\u203a Z" in text for text in texts)


# --- What is written and is no memory ----------------------------------------------------------------------


def roles_of(rolled: Rollouts) -> list[set[int]]:
    """The roles of each segment."""
    return [set(row) - {0} for row in rolled.responses.roles_BK.tolist()]


@pytest.mark.parametrize(
    ("name", "late"), [("mempo", "<mem> late </mem>"), ("bank", "<memory_write> late </memory_write>")]
)
@pytest.mark.parametrize("search", ["<search> Ines Calder </search>", "<search> Ines Calder "])
def test_memory_behind_an_action_is_dropped_and_thought(name: str, late: str, search: str) -> None:
    played = games(name, Exact(act=f"{search}{late}"))
    assert not any(round.memory for episode in played for round in episode.rounds)
    rolled = from_episodes(played, TOKENIZER)
    assert all(MEM not in roles for roles in roles_of(rolled)) and CALL in set.union(*roles_of(rolled))


@pytest.mark.parametrize("first", ["<mem> </mem>", "<mem> one fact </mem>"])
@pytest.mark.parametrize("name", ["memagent", "memsearcher", "rag_memory", "resum(150)"])
def test_a_call_that_stored_nothing_is_thought(name: str, first: str) -> None:
    """Also where an older memory stays in force."""

    def memory(prompt: Prompt, _: Call) -> str:
        return "<mem> </mem>" if "one fact" in prompt.text else first

    played = games(name, Exact(memory=memory))
    calls = [call for episode in played for round in episode.rounds for call in round.calls]
    assert any(call.role == "mem" and call.output == "<mem> </mem>" for call in calls)
    for call, roles in zip(calls, roles_of(from_episodes(played, TOKENIZER)), strict=True):
        assert (MEM in roles) <= (call.role == "mem" and "one fact" in call.output), call


@pytest.mark.parametrize("name", ["selfask", "mem0", "amem"])
def test_a_thought_that_reads_like_the_action_is_a_thought(name: str) -> None:
    same = "<search> Ines Calder </search>"
    played = games(name, Exact(memory=same, act=same))
    rolled, row = from_episodes(played, TOKENIZER), 0
    for round in (round for episode in played for round in episode.rounds):
        mine = roles_of(rolled)[row : row + len(round.calls)]
        row += len(round.calls)
        assert [CALL in roles for roles in mine] == [False] * (len(mine) - 1) + [True]


def stripped(context: Context) -> Round:
    return (yield as_shown(context, ENDS)).strip()


@pytest.mark.parametrize("blanks", ["", "\n", " \n "])
def test_an_agent_that_strips_what_was_written_keeps_its_roles(blanks: str) -> None:
    model = Exact(act=f"{blanks}<mem> noted </mem><search> x </search>{blanks}")
    task, kwargs = Task(objectives=1, sets=1, environment={"max_rounds": 2}), {"memory": "inline"}
    rolled = [
        from_episodes(play(agent, task.asked("train"), task.env_kwargs("train"), 0), TOKENIZER)
        for agent in (
            ModelAgent(name="mine", play=how, model=model, env_kwargs=kwargs) for how in (one_call, stripped)
        )
    ]
    assert {MEM, CALL} <= set.union(*roles_of(rolled[0]))
    np.testing.assert_array_equal(rolled[0].responses.roles_BK, rolled[1].responses.roles_BK)
