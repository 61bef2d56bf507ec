"""What episodes cost: tokens by kind, dollars and time, for each episode and for each right answer.

All of it is read off rows that were played, with a table of prices that is given when it is asked for: prices
have no part in what decides whether two runs compare.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from mempo_benchmarks.results import Row
from mempo_benchmarks.stats import Interval, mean_intervals, ratio_intervals
from mempo_env.errors import ConfigError
from mempo_env.settings import Settings, Size


class Price(Settings, frozen=True, kw_only=True):
    """What a model costs, in dollars for a million tokens.

    Attributes:
        prompt: Of prompts.
        output: Of outputs.
        cached: Of what a prompt has in the server's prefix cache; None: as the rest of the prompt.
    """

    prompt: Size
    output: Size
    cached: Size | None = None


class Cost(Struct, frozen=True):
    """Something that an episode costs.

    Attributes:
        key: Its name in data.
        label: Its name in tables.
        about: What it is, in a sentence.
        of: From a row and the price of its model to its value; None where it is not known.
        money: Whether it is in dollars, for 1,000 episodes or answers.
    """

    key: str
    label: str
    about: str
    of: Callable[[Row, Price | None], float | None]
    money: bool = False


class Spent(Struct, frozen=True):
    """A cost with its intervals.

    Attributes:
        episode: Its mean over all episodes.
        right: Its sum over all episodes for each question that was answered rightly; None if none was.
    """

    episode: Interval
    right: Interval | None


def dollars(row: Row, price: Price | None) -> float | None:
    """What an episode costs at a price; None without one."""
    if price is None:
        return None
    prompt = sum(row.prompt_tokens)
    cached = min(row.cached_tokens or 0, prompt)  # they may be counted in other units
    of_cached = price.prompt if price.cached is None else price.cached
    output = row.total - prompt
    return (price.prompt * (prompt - cached) + of_cached * cached + price.output * output) / 1e6


def _thousand(row: Row, price: Price | None) -> float | None:
    paid = dollars(row, price)
    return None if paid is None else 1_000 * paid


_CACHED = "Tokens of prompts that came from the server's prefix cache; they are among the prompt tokens."
_DOLLARS = "Of 1,000, by the prices given, for tokens as they were counted."
_SECONDS = "Wall time: each round of the episodes that were played together is shared by them equally."

COSTS = (
    Cost("prompt", "prompt tokens", "Prompts of all calls.", lambda row, _: sum(row.prompt_tokens)),
    Cost("cached", "cached tokens", _CACHED, lambda row, _: row.cached_tokens),
    Cost("output", "output tokens", "Outputs of all calls.", lambda r, _: r.total - sum(r.prompt_tokens)),
    Cost("dollars", "dollars for 1,000", _DOLLARS, _thousand, True),
    Cost("seconds", "seconds", _SECONDS, lambda row, _: row.seconds),
)


def spending(rows: Sequence[Row], price: Price | None) -> dict[str, Spent]:
    """The costs of an agent by key, those that are known; failed episodes cost as others do.

    What a right answer costs is a ratio of sums. Episodes of which a cost is not known (a failed one that
    made no call) count as 0 where that of others is.
    """
    columns = {cost.key: [cost.of(row, price) for row in rows] for cost in COSTS}
    known = {key: values for key, values in columns.items() if any(value is not None for value in values)}
    if not known:
        return {}
    values_NM = np.array([[value or 0.0 for value in values] for values in known.values()]).T
    right_N = np.array([answered(row) for row in rows])

    each = mean_intervals(values_NM)
    right = ratio_intervals(values_NM, right_N) if right_N.any() else [None] * len(known)
    return {key: Spent(mean, ratio) for key, mean, ratio in zip(known, each, right, strict=True)}


def tokens_for_an_answer(rows: Sequence[Row]) -> Interval | None:
    """The tokens of all episodes, prompt and output, for each right answer; None if none is right."""
    right_N = np.array([answered(row) for row in rows])
    return ratio_intervals([[row.total] for row in rows], right_N)[0] if right_N.any() else None


def answered(row: Row) -> int:
    """The questions of an episode that were answered rightly."""
    return sum(reason is None for reason in row.failure)


def read_prices(path: Path) -> dict[str, Price]:
    """Prices by the name of the model, from a TOML file with a table for each.

    Raises:
        ConfigError: if it can't be read or a price does not fit; names the file and the model.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: wanted a TOML file of prices, got none ({error})") from None
    return {model: _price(f"{path}, {model!r}", table) for model, table in tables.items()}


def _price(place: str, table: object) -> Price:
    if not isinstance(table, dict) or not {"prompt", "output"} <= table.keys():
        raise ConfigError(
            f"{place}: wanted dollars for a million tokens under the model's name in quotes, prompt = 0.1 "
            f"and output = 0.4 (and cached = 0.05, if that is another price), got {str(table)[:100]}"
        )
    try:
        return Price(**table)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


def check_prices(prices: Mapping[str, Price], models: Collection[str]) -> None:
    """Refuse prices that are for none of the models that were run: a name is misspelt."""
    if prices and not prices.keys() & set(models):
        ran = ", ".join(sorted(filter(None, set(models)))) or "no model"
        raise ConfigError(
            f"prices: wanted one of a model that was run ({ran}), got prices of {', '.join(sorted(prices))}"
        )
