"""What the agent sees, rule by rule; and that nothing dropped comes back by any way."""

from __future__ import annotations

import pytest

from mempo_env.context import check_rule
from mempo_env.errors import ConfigError
from small import answer, make, search

ROUNDS = [
    search("Aldo Verne alpha", "MEM1"),
    search("Marrow Bay beta", "MEM2"),
    search("Bela Quist gamma"),
    search("Port Ostrel delta", "MEM4"),
]


def views(context: object, memory: str = "inline", actions: list[str] = ROUNDS) -> list[list[str]]:
    """Kinds and rounds in view after each round, system and question left out."""
    env = make(context=context, memory=memory, hint=False)
    env.reset(options={"question_id": "q0"})
    seen = []
    for action in actions:
        info = env.step(action)[4]
        assert [s.kind for s in info["segments"][:2]] == ["system", "question"]
        seen.append([f"{s.kind}{s.round}" for s in info["segments"][2:]])
    return seen


def step(r: int, mem: bool = True) -> list[str]:
    return [f"mem{r}"] * mem + [f"think{r}", f"call{r}", f"information{r}"]


def test_last_step_keeps_the_whole_step_and_the_memory_always() -> None:
    assert views("last_step") == [step(1), step(2), ["mem2", *step(3, mem=False)], step(4)]


def test_memory_only_keeps_the_memory_and_the_last_information() -> None:
    kept = [f"information{r}" for r in (1, 2, 3, 4)]
    assert views("memory_only") == [[f"mem{m}", i] for m, i in zip((1, 2, 2, 4), kept, strict=True)]


def test_k_steps_and_the_memory() -> None:
    assert views(2) == [
        step(1),
        step(1) + step(2),
        step(2) + step(3, mem=False),
        step(3, mem=False) + step(4),
    ]
    only_first = [ROUNDS[0], search("a"), search("b"), search("c")]
    assert views(2, actions=only_first)[3] == ["mem1", *step(3, mem=False), *step(4, mem=False)]


def test_full_keeps_every_step() -> None:
    assert views("full")[3] == step(1) + step(2) + step(3, mem=False) + step(4)


def test_without_memory_nothing_is_stored() -> None:
    assert views("last_step", memory="none") == [step(r, mem=False) for r in (1, 2, 3, 4)]


def test_an_invalid_round_changes_nothing_and_says_why() -> None:
    actions = [search("a", "KEEP"), "<mem>NEW</mem> no action"]
    assert views("last_step", actions=actions)[1] == ["mem1", "invalid2", "error2"]
    assert views("memory_only", actions=actions)[1] == ["mem1", "information1", "error2"]
    env = make()
    env.reset(options={"question_id": "q0"})
    for action in actions:
        info = env.step(action)[4]
    assert info["memory"] == "KEEP"


@pytest.mark.parametrize("context", ["last_step", "memory_only", 1, 2])
def test_no_text_of_a_dropped_step_reaches_the_agent(context: object) -> None:
    """A marker in every part of round 1 is never seen again once the rule has dropped that round."""
    env = make(context=context)
    env.reset(seed=3, options={"question_id": "q0"})
    marker = "XYZZY"
    env.step(f"<mem>{marker}a</mem><think>{marker}b</think><search>{marker}c Aldo Verne</search>")
    kept = 1 if isinstance(context, str) else context
    for r in range(2, 7):
        obs, _, _, _, info = env.step(search(f"Port Ostrel {r}", f"clean {r}"))
        if r > kept:
            assert marker not in obs + repr(info["segments"]) + repr(info["messages"]) + info["memory"]
    env.step(answer("done"))
    obs, info = env.reset()
    assert marker not in obs + repr(info)


def test_observation_is_the_segments_joined_and_so_are_the_messages() -> None:
    env = make()
    obs, info = env.reset(seed=0)
    for action in [*ROUNDS, "invalid", answer("x")]:
        assert obs == "\n".join(s.text for s in info["segments"])
        assert obs == "\n".join(m["content"] for m in info["messages"])
        assert [m["role"] for m in info["messages"]] == ["system", "user"]
        obs, *_, info = env.step(action)
    assert obs == "\n".join(s.text for s in info["segments"])


def test_without_a_system_prompt_there_is_one_message() -> None:
    env = make(system_prompt="")
    obs, info = env.reset(seed=0)
    assert info["messages"] == ({"role": "user", "content": obs},)


def test_hint_tells_the_budgets_and_can_be_switched_off() -> None:
    env = make(max_rounds=3, max_context_tokens=500)
    obs, info = env.reset(options={"question_id": "q0"})
    left = 500 - sum(s.tokens for s in info["segments"][:-1])
    assert obs.endswith(f"(3 rounds left, {left} tokens of context left)")
    assert env.step(search("a"))[0].splitlines()[-1].startswith("(2 rounds left")
    assert "left)" not in make(hint=False).reset(seed=0)[0]


@pytest.mark.parametrize("rule", ["last", "", 0, -1, True, 1.5, None])
def test_wrong_rules_are_refused(rule: object) -> None:
    with pytest.raises(ConfigError, match="context"):
        check_rule(rule)  # type: ignore[arg-type]
