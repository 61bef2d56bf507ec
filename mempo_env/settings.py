"""Settings made by keyword: a wrong name, kind, choice or range is refused by a line that says what fits."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta, Struct
from msgspec.inspect import BoolType, FloatType, IntType, NoneType, StrType, UnionType, type_info
from msgspec.structs import force_setattr

from mempo_env.errors import ConfigError, KeywordError, lookup

P = ParamSpec("P")
T = TypeVar("T")

MOST = 1e9
"""Of weights and bounds: beyond, products leave what a float32 holds."""

MOST_WHOLE = 2**63 - 1
"""Seeds and counts are written as whole numbers of 64 bits."""

Whole: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_WHOLE)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_WHOLE)]
Number: TypeAlias = Annotated[float, Meta(ge=-MOST, le=MOST)]
Size: TypeAlias = Annotated[float, Meta(ge=0, le=MOST)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


def by_keyword(function: Callable[P, T]) -> Callable[P, T]:
    """Refuse a keyword that the function lacks by a KeywordError that names the nearest."""
    names = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        _known(kwargs, names)
        return function(*args, **kwargs)

    return checked


class _ByKeyword(msgspec.StructMeta):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        _known(kwargs, cls.__struct_fields__)
        return super().__call__(*args, **kwargs)


class Settings(Struct, metaclass=_ByKeyword, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A struct whose fields are of the kinds, in the ranges and among the choices that it annotates.

    Numbers are floats, also where whole ones are given, so that equal settings are written equally.

    Raises:
        KeywordError: for a name that is no field.
        ConfigError: for a value that does not fit, with the field, what was wanted and what came.
    """

    def __post_init__(self) -> None:
        for name, kind in _kinds(type(self)).items():
            value = check(name, getattr(self, name), kind)
            if isinstance(value, float):
                force_setattr(self, name, value)


@functools.cache
def _kinds(settings: type[Settings]) -> dict[str, Any]:
    return get_type_hints(settings, include_extras=True)


def check(name: str, value: Any, kind: Any) -> Any:
    """A value as one of a kind: a type, with `Meta` for its range, a Literal, a struct; or a ConfigError."""
    if get_origin(kind) is Literal:
        lookup(dict.fromkeys(get_args(kind)), value, name)
        return value
    if isinstance(kind, msgspec.StructMeta) and not isinstance(value, kind):
        raise ConfigError(f"{name}: wanted {kind.__name__}(...), got {_short(value)}")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        wanted = _told(type_info(kind)) or str(error).replace("Expected ", "").replace("$", name)
        raise ConfigError(f"{name}: wanted {wanted}, got {_short(value)}") from None


def _known(given: Iterable[str], names: Iterable[str]) -> None:
    table = dict.fromkeys(names)
    for name in given:
        try:
            lookup(table, name, "keyword")
        except ConfigError as error:
            raise KeywordError(str(error)) from None


def _told(kind: Any) -> str | None:
    """A kind in words; None for one that has none of its own."""
    match kind:
        case BoolType():
            return "a flag"
        case StrType():
            return "a text"
        case IntType():
            return f"a whole number{_range(kind)}"
        case FloatType():
            return f"a number{_range(kind)}"
        case UnionType(types=(some, NoneType())) if told := _told(some):
            return f"{told}, or None"
    return None


def _range(kind: IntType | FloatType) -> str:
    if kind.gt is not None:
        return f" above {_bound(kind.gt)}, at most {_bound(kind.le)}"
    if kind.le == MOST_WHOLE:
        return f" from {_bound(kind.ge)} on, below 2**63"
    return f" from {_bound(kind.ge)} to {_bound(kind.le)}"


def _bound(number: float | None) -> str:
    if number is None:
        return "any"
    whole = abs(number) < 1e7 and number == int(number)
    return f"{int(number):,}" if whole else f"{number:.3g}"


def _short(value: Any) -> str:
    return "one of many digits" if isinstance(value, int) and abs(value) > 2**64 else repr(value)[:100]
