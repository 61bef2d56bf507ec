"""What `mempo train sft` imitates: the calls of an expert, in the contexts that the policy will meet."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from llm_help import chatting, needs_transformers
from mempo_agents.models.scripted import ScriptedModel
from mempo_agents.rollout import episodes
from mempo_agents.table import make_agent
from mempo_env.errors import ConfigError
from mempo_trainers.llm.settings import SftSetup, Task

needs_transformers()

from llm_policy_help import policy  # noqa: E402
from mempo_trainers.llm.examples import Noting, examples_of  # noqa: E402
from mempo_trainers.policies.huggingface import PolicySettings  # noqa: E402

AGENTS = [
    *("mempo", "bank", "react", "mem1", "iterresearch", "selfask", "rag_memory", "amem", "mem0"),
    *("memagent", "memsearcher", "resum(150)", "paging(150)"),
]


WINDOW = {"max_position_embeddings": 16_384}


@cache
def wide() -> Any:
    return policy(config=WINDOW, max_new=2_000)


def setup(expert: str, agent: str, **environment: Any) -> SftSetup:
    task = Task(objectives=1, sets=4, agent=agent, environment={"max_rounds": 6, **environment})
    return SftSetup(policy=PolicySettings(model="tiny"), task=task, expert=expert)


def texts(examples: Any) -> list[tuple[str, str]]:
    written = zip(examples.responses.tokens_BK, examples.responses.roles_BK, strict=True)
    decode = chatting().decode
    return [
        (decode(context), decode(ids[roles != 0]))
        for context, (ids, roles) in zip(examples.contexts, written, strict=True)
    ]


@pytest.mark.parametrize("agent", AGENTS)
def test_each_call_is_learned_in_the_context_that_the_policy_will_meet(agent: str) -> None:
    """Those that the very agent asks its model in, byte for byte, of the episodes that are right."""
    made = setup(agent, agent)
    asked = made.task.asked("train")
    examples, told = examples_of(made, asked, wide())
    noting = Noting(ScriptedModel())
    played = dict(episodes(make_agent(agent, model=noting), asked, env_kwargs=made.task.env_kwargs("train")))
    wanted = [
        (chatting().decode(wide().tokenizer.chat(prompt)), text)
        for i in sorted(played)
        if played[i].score.em_all == 1
        for prompt, text in noting.noted[i]
    ]
    assert texts(examples) == wanted and wanted
    calls = sum(len(round.calls) for episode in played.values() for round in episode.rounds)
    assert calls == sum(map(len, noting.noted.values()))
    assert told["texts"] == told["texts_used"] == len(wanted) and told["expert_episodes"] == 4


@pytest.mark.parametrize("agent", ["mempo", "react"])
def test_an_expert_that_asks_no_model_writes_to_the_prompt_of_the_environment(agent: str) -> None:
    made = setup("oracle", agent)
    examples, told = examples_of(made, made.task.asked("train"), wide())
    assert told["expert_right"] == 4 and len(examples.contexts) >= 8
    assert all("Question:" in context for context, _ in texts(examples))


def test_the_policy_s_own_system_message_takes_the_place_of_the_expert_s() -> None:
    plain, short, none = (
        texts(examples_of(made, made.task.asked("train"), wide())[0])
        for told in ({}, {"system_prompt": "Go."}, {"system_prompt": ""})
        for made in (setup("mempo", "mempo", **told),)
    )
    assert [text for _, text in plain] == [text for _, text in short] == [text for _, text in none]
    assert all("<|start|>system\nGo.<|end|>" in context for context, _ in short)
    assert all("user\nQuestion:" in context for context, _ in none)
    assert not any("Answer the question" in context for context, _ in short + none)


@pytest.mark.parametrize(
    ("expert", "agent"),
    [("mempo", "memagent"), ("bank", "mempo"), ("mempo", "bank"), ("react", "mempo"), ("oracle", "memagent")],
)
def test_an_expert_that_plays_by_other_prompts_is_refused(expert: str, agent: str) -> None:
    made = setup(expert, agent)
    with pytest.raises(ConfigError, match=rf"expert: .*task\.agent={agent}, got '{expert}'.*expert={agent}"):
        examples_of(made, made.task.asked("train"), wide())


def test_what_is_left_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    made = setup("mempo", "mempo")
    asked = made.task.asked("train")
    examples, told = examples_of(made, asked, wide())
    *_, second, longest = lengths = sorted((examples.responses.roles_BK != 0).sum(1).tolist())
    assert told["longest_text"] == longest > second
    capsys.readouterr()
    _, told = examples_of(made, asked, policy(config=WINDOW, max_new=second))
    used = told["texts_used"]
    assert 0 < len(lengths) - used <= 0.1 * len(lengths)
    said = capsys.readouterr().err
    assert f"is right in 4 of 4 episodes; {used} of {len(lengths)} texts are used" in said
    assert f"the others are longer than policy.max_new ({second})" in said
    with pytest.raises(ConfigError, match=f"max_new: wanted {longest} tokens"):
        examples_of(made, asked, policy(config=WINDOW, max_new=lengths[0]))
