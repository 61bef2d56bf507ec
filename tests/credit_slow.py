"""Every estimator once more, from its formula, in plain loops over plain data: slow, and independent."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from credit_help import Address, Rollout, Round
from mempo_trainers.credit.data import CALL, MEM

Slow = Callable[..., dict[Address, float]]
Rounds = dict[tuple[int, int], float]


def generated(rollouts: Sequence[Rollout]) -> Iterator[Address]:
    """Addresses of the tokens that have an advantage, a rollout's in the order in which it wrote them."""
    for n, rollout in enumerate(rollouts):
        for t, round_ in enumerate(rollout.rounds):
            for s, segment in enumerate(round_.segments):
                for k, token in enumerate(segment):
                    if token.role and not rollout.masked:
                        yield n, t, s, k


def token_at(rollouts: Sequence[Rollout], address: Address) -> Any:
    n, t, s, k = address
    return rollouts[n].rounds[t].segments[s][k]


def norm(
    values: dict[Any, float], group: Callable[[Any], Any], floor: float = 0.0, ddof: int = 1
) -> dict[Any, float]:
    """(x - mean) / (std + 1e-6) within groups of keys."""
    members = defaultdict(list)
    for key in values:
        members[group(key)].append(key)
    out = {}
    for keys in members.values():
        xs = [values[key] for key in keys]
        mean = math.fsum(xs) / len(xs)
        std = math.sqrt(math.fsum((x - mean) ** 2 for x in xs) / (len(xs) - ddof)) if len(xs) > 1 else 0.0
        dead = len(set(xs)) == 1 or std < floor
        out.update({key: 0.0 if dead else (values[key] - mean) / (std + 1e-6) for key in keys})
    return out


def outcomes(rollouts: Sequence[Rollout], ddof: int = 1) -> dict[int, float]:
    alive = {n: r.outcome for n, r in enumerate(rollouts) if not r.masked}
    normed = norm(alive, lambda n: rollouts[n].question, ddof=ddof)
    return {n: a + rollouts[n].shaping for n, a in normed.items()}


def _all(rollouts: Sequence[Rollout], number: Callable[[Address], float]) -> dict[Address, float]:
    return {address: number(address) for address in generated(rollouts)}


def grpo(rollouts: Sequence[Rollout], ddof: int = 1) -> dict[Address, float]:
    a = outcomes(rollouts, ddof)
    return _all(rollouts, lambda at: a[at[0]])


def _others(rollouts: Sequence[Rollout], n: int, itself: bool) -> list[float]:
    question = rollouts[n].question
    return [
        r.outcome
        for i, r in enumerate(rollouts)
        if r.question == question and not r.masked and (itself or i != n)
    ]


def dr_grpo(rollouts: Sequence[Rollout]) -> dict[Address, float]:
    def number(at: Address) -> float:
        own, group = rollouts[at[0]], _others(rollouts, at[0], True)
        return own.outcome - sum(group) / len(group) + own.shaping

    return _all(rollouts, number)


def rloo(rollouts: Sequence[Rollout]) -> dict[Address, float]:
    def number(at: Address) -> float:
        own, others = rollouts[at[0]], _others(rollouts, at[0], False)
        return (own.outcome - sum(others) / len(others) if others else 0.0) + own.shaping

    return _all(rollouts, number)


def discounted(rollouts: Sequence[Rollout], gamma: float = 0.95) -> dict[Address, float]:
    a = outcomes(rollouts)

    def number(at: Address) -> float:
        left = len(rollouts[at[0]].rounds) - (at[1] + 1)
        return a[at[0]] * (gamma**left if token_at(rollouts, at).role == MEM else 1.0)

    return _all(rollouts, number)


def memory_only(rollouts: Sequence[Rollout], elsewhere: float = 0.1) -> dict[Address, float]:
    a = outcomes(rollouts)
    return _all(rollouts, lambda at: a[at[0]] * (1.0 if token_at(rollouts, at).role == MEM else elsewhere))


# --- Memory ------------------------------------------------------------------------------------------------


def probability(logps: Sequence[float], objectives: str) -> float:
    if objectives == "arithmetic":
        return sum(math.exp(x) for x in logps) / len(logps)
    mean = sum(logps) / len(logps)
    return mean if objectives == "log" else math.exp(mean)


def memory_rewards(
    rollouts: Sequence[Rollout], objectives: str = "arithmetic", baseline: str = "full", only: bool = False
) -> Rounds:
    out: Rounds = {}
    for n, rollout in enumerate(rollouts):
        for t in range(1, len(rollout.rounds)):
            here, before = rollout.rounds[t], rollout.rounds[t - 1]
            previous = rollout.prior if t == 1 else before.memory
            base = here.history if baseline == "full" else previous
            used = baseline != "none"
            if rollout.masked or (only and not rollout.outcome > 0) or math.isnan(here.memory[0]):
                continue
            if used and math.isnan(base[0]):
                continue
            p = probability(here.memory, objectives)
            out[n, t] = p - (probability(base, objectives) if used else 0.0)
    return out


def mempo(
    rollouts: Sequence[Rollout],
    objectives: str = "arithmetic",
    baseline: str = "full",
    weight: float = 1.0,
    pool: str = "all",
    only_successful: bool = False,
    ddof: int = 1,
) -> dict[Address, float]:
    rewards = memory_rewards(rollouts, objectives, baseline, only_successful)
    term = norm(rewards, lambda at: (rollouts[at[0]].question, at[1] if pool == "round" else 0), 1e-4, ddof)
    a = outcomes(rollouts, ddof)

    def number(at: Address) -> float:
        extra = weight * term.get(at[:2], 0.0) if token_at(rollouts, at).role == MEM else 0.0
        return a[at[0]] + extra

    return _all(rollouts, number)


def spread(rollouts: Sequence[Rollout], weight: float = 1.0) -> dict[Address, float]:
    rewards = memory_rewards(rollouts)
    both = {}
    for n, rollout in enumerate(rollouts):
        if not rollout.masked:
            own = [r for at, r in rewards.items() if at[0] == n]
            both[n] = rollout.outcome + weight * (sum(own) / len(own) if own else 0.0)
    normed = norm(both, lambda n: rollouts[n].question, 1e-4)
    return _all(rollouts, lambda at: normed[at[0]] + rollouts[at[0]].shaping)


# --- Turns -------------------------------------------------------------------------------------------------


def turn_level(rollouts: Sequence[Rollout], weight: float = 1.0) -> dict[Address, float]:
    found = {
        (n, t): float(r.rounds[t].found)
        for n, r in enumerate(rollouts)
        for t in range(len(r.rounds) - 1)
        if not r.masked
    }
    turn = norm(found, lambda at: (rollouts[at[0]].question, at[1]), 1e-4)
    a = outcomes(rollouts)
    return _all(rollouts, lambda at: a[at[0]] + weight * turn.get(at[:2], 0.0))


def gigpo(rollouts: Sequence[Rollout], gamma: float = 0.95, weight: float = 1.0) -> dict[Address, float]:
    returns: Rounds = {}
    for n, rollout in enumerate(rollouts):
        if not rollout.masked:
            for t in range(len(rollout.rounds)):
                later = [r.reward for r in rollout.rounds[t:]]
                returns[n, t] = sum(gamma**i * r for i, r in enumerate(later))

    def group(at: tuple[int, int]) -> tuple[int, int]:
        return rollouts[at[0]].question, rollouts[at[0]].rounds[at[1]].state

    step, a = norm(returns, group, 1e-4), outcomes(rollouts)
    return _all(rollouts, lambda at: a[at[0]] + weight * step[at[:2]])


def gain(rollout: Rollout, t: int, objectives: str = "arithmetic") -> float:
    before = rollout.prior if t == 0 else rollout.rounds[t].history
    return probability(rollout.rounds[t].seen, objectives) - probability(before, objectives)


def igpo(rollouts: Sequence[Rollout], gamma: float = 1.0) -> dict[Address, float]:
    rewards: Rounds = {}
    for n, rollout in enumerate(rollouts):
        if not rollout.masked:
            end = len(rollout.rounds) - 1
            rewards.update({(n, t): gain(rollout, t) for t in range(end)})
            rewards[n, end] = rollout.outcome
    z = norm(rewards, lambda at: rollouts[at[0]].question, 1e-4)

    def number(at: Address) -> float:
        n, t = at[:2]
        later = range(t, len(rollouts[n].rounds))
        return sum(gamma ** (s - t) * z[n, s] for s in later) + rollouts[n].shaping

    return _all(rollouts, number)


def mempo_gain(rollouts: Sequence[Rollout], gamma: float = 1.0) -> dict[Address, float]:
    sums: Rounds = {}
    for n, rollout in enumerate(rollouts):
        end = len(rollout.rounds) - 1
        for t in range(0 if not rollout.masked else end, end):
            sums[n, t] = sum(gamma ** (s - t) * gain(rollout, s, "log") for s in range(t, end))
    squares = defaultdict(list)
    for (n, _), total in sums.items():
        squares[rollouts[n].question].append(total**2)
    size = {question: math.sqrt(sum(x) / len(x)) for question, x in squares.items()}
    base = mempo(rollouts)

    def number(at: Address) -> float:
        spread_ = size.get(rollouts[at[0]].question, 0.0)
        searched = token_at(rollouts, at).role == CALL and at[:2] in sums and spread_ >= 1e-4
        return base[at] + (sums[at[:2]] / (spread_ + 1e-6) if searched else 0.0)

    return _all(rollouts, number)


# --- Returns and critics -----------------------------------------------------------------------------------


def _backwards(own: list[Address]) -> list[tuple[Address, Address | None]]:
    """Tokens from the last to the first, each with the one that follows it."""
    return list(reversed(list(zip(own, [*own[1:], None][: len(own)], strict=True))))


def _paid(rollouts: Sequence[Rollout], at: Address, following: Address | None) -> float:
    """The reward on a token: its round's, if it is the last there, and that of next rounds without tokens."""
    n, t = at[:2]
    until = len(rollouts[n].rounds) if following is None else following[1]
    return sum(r.reward for r in rollouts[n].rounds[t:until])


def reinforce_pp(rollouts: Sequence[Rollout], beta: float = 0.0) -> dict[Address, float]:
    g: dict[Address, float] = {}
    for n in range(len(rollouts)):
        own = [at for at in generated(rollouts) if at[0] == n]
        total = 0.0
        for at, following in _backwards(own):
            token = token_at(rollouts, at)
            total += _paid(rollouts, at, following) - beta * (token.logp - token.ref)
            g[at] = total
    if not g:
        return {}
    mean = math.fsum(g.values()) / len(g)
    variance = math.fsum((x - mean) ** 2 for x in g.values()) / max(len(g) - 1, 1)
    return {at: (x - mean) / math.sqrt(variance + 1e-8) for at, x in g.items()}


def gae(
    rollouts: Sequence[Rollout], gamma_round: float = 1.0, lambda_round: float = 0.95
) -> dict[Address, float]:
    out: dict[Address, float] = {}
    for n in range(len(rollouts)):
        own = [at for at in generated(rollouts) if at[0] == n]
        after_v = after_a = 0.0
        for at, following in _backwards(own):
            border = following is not None and following[1] != at[1]
            gamma, lam = (gamma_round, lambda_round) if border else (1.0, 1.0)
            value = token_at(rollouts, at).value
            delta = _paid(rollouts, at, following) + gamma * after_v - value
            after_v, after_a = value, delta + gamma * lam * after_a
            out[at] = after_a
    return out


# --- Attribution -------------------------------------------------------------------------------------------


def attribution(
    rollouts: Sequence[Rollout],
    merged: Sequence[tuple[int, int]],
    cost: float = 0.1,
    weight: float = 1.0,
    progress: str = "recall",
) -> dict[Address, float]:
    sources = defaultdict(set)
    for entry, source in merged:
        sources[entry].add(source)
    direct: dict[int, float] = defaultdict(float)
    used: set[int] = set()
    for rollout in rollouts:
        for t, round_ in enumerate(rollout.rounds):
            entries = set(round_.uses)
            used |= entries
            for entry in entries:
                direct[entry] += _step(rollout, t, round_, progress) / len(entries)

    def settle(entry: int) -> tuple[float, bool]:
        """What an entry earned itself and by the merges that it went into."""
        total, touched = direct[entry], entry in used
        for into, parts in sources.items():
            if entry in parts:
                share, also = settle(into)
                total, touched = total + share / len(parts), touched or also
        return total, touched

    credit: dict[Address, float] = {}
    for at in generated(rollouts):
        entry = token_at(rollouts, at).entry
        if entry >= 0 and entry not in sources:
            share, touched = settle(entry)
            credit[at] = share if touched else -cost
    extra, a = norm(credit, lambda at: rollouts[at[0]].question, 1e-4), outcomes(rollouts)
    return _all(rollouts, lambda at: a[at[0]] + weight * extra.get(at, 0.0))


def _step(rollout: Rollout, t: int, round_: Round, progress: str) -> float:
    if progress == "score":
        return gain(rollout, t)
    return round_.recall - (rollout.rounds[t - 1].recall if t else 0.0)
