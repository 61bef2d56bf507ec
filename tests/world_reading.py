"""An independent reading of the synthetic world: what a question means, against the table of all facts.

A question is taken apart by every form that fits its words, and each reading is looked up in the facts of the
whole world. If all readings together give one answer, the question has exactly one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from mempo_env.questions.world.cluster import Cluster
from mempo_env.questions.world.facts import ROLES, Entity, Facts, Literal
from mempo_env.questions.world.phrases import CONDITIONS, FIRST, GROUPS, MAKERS, RELATIONS, SAME

NOUNS = sorted({*ROLES, *MAKERS}, key=len, reverse=True)


def pattern(form: str, **fields: str) -> re.Pattern[str]:
    """A form as a pattern whose fields are groups."""
    parts = re.split(r"\{(\w+)\}", form)
    return re.compile(
        "".join(
            re.escape(part) if place % 2 == 0 else f"(?P<{part}>{fields.get(part, '.+')})"
            for place, part in enumerate(parts)
        )
    )


class World:
    """All facts of some clusters, which are the whole world."""

    def __init__(self, clusters: list[Cluster]) -> None:
        self.facts: Facts = {name: held for part in clusters for name, held in part.facts.items()}
        self.entities = {name: entity for part in clusters for name, entity in part.entities.items()}
        self.surfaces: dict[str, str] = {}
        for entity in self.entities.values():
            for surface in {entity.text, *entity.answers}:
                assert surface not in self.surfaces  # one name, one thing
                self.surfaces[surface] = entity.name
        self._known: dict[str, frozenset[str]] = {}

    @cached_property
    def _phrases(self) -> list[tuple[str, re.Pattern[str]]]:
        return [(rel, pattern(form)) for rel, held in RELATIONS.items() for form in held.phrases]

    def things(self, phrase: str) -> frozenset[str]:
        """Names of all things that a phrase can mean."""
        if phrase not in self._known:
            self._known[phrase] = frozenset(self._things(phrase))
        return self._known[phrase]

    def _things(self, phrase: str) -> Iterator[str]:
        for noun in ("", *(f"the {noun} " for noun in NOUNS)):
            name = self.surfaces.get(phrase.removeprefix(noun))
            if phrase.startswith(noun) and name and noun in ("", f"the {self.entities[name].noun} "):
                yield name
        for relation, form in self._phrases:
            if match := form.fullmatch(phrase):
                for name in self.things(match["x"]):
                    for value in self.facts[name].get(relation, ()):
                        if isinstance(value, Entity):
                            yield value.name

    def answers(self, text: str) -> set[tuple[str, ...]]:
        """Everything that answers a question in any of its readings."""
        return {*self._bridges(text), *self._comparisons(text), *self._intersections(text)}

    def _bridges(self, text: str) -> Iterator[tuple[str, ...]]:
        for relation, held in RELATIONS.items():
            for form in held.questions:
                if match := pattern(form).fullmatch(text):
                    for name in self.things(match["x"]):
                        yield from (value.answers for value in self.facts[name].get(relation, ()))

    def _comparisons(self, text: str) -> Iterator[tuple[str, ...]]:
        for relation, forms in FIRST.items():
            for largest, form in enumerate(forms):
                if match := pattern(form).fullmatch(text):
                    yield self._extreme([match["a"], match["b"]], relation, largest, None)
        form = (
            f"Which (?P<kind>{'|'.join(MAKERS)}) has the (?P<role>\\w+) who was born (?P<word>first|later), "
        )
        if match := re.fullmatch(form + "(?P<a>.+) or (?P<b>.+)\\?", text):
            assert MAKERS[match["kind"]] == match["role"]
            yield self._extreme([match["a"], match["b"]], "born", match["word"] == "later", match["role"])
        for relation, form in SAME.items():
            if match := pattern(form).fullmatch(text):
                one, two = (self._only(match[field]) for field in ("a", "b"))
                same = self.facts[one][relation] == self.facts[two][relation]
                yield ("yes",) if same else ("no",)

    def _only(self, phrase: str) -> str:
        (name,) = self.things(phrase)
        return name

    def _extreme(self, phrases: list[str], relation: str, largest: bool, over: str | None) -> tuple[str, ...]:
        keys = {}
        for phrase in phrases:
            name = self._only(phrase)
            (measured,) = self.facts[name][over] if over else (self.entities[name],)
            assert isinstance(measured, Entity)
            (value,) = self.facts[measured.name][relation]
            assert isinstance(value, Literal)
            keys[name] = value.key
        assert len(set(keys.values())) == 2  # no tie, and two different things
        return self.entities[(max if largest else min)(keys, key=keys.__getitem__)].answers

    def _intersections(self, text: str) -> Iterator[tuple[str, ...]]:
        for group, forms in GROUPS.items():
            for template in forms:
                for relation, conditions in CONDITIONS.items():
                    for condition in conditions:
                        form = template.replace("{did}", condition).replace("{doing}", condition)
                        if match := pattern(form, noun="|".join(NOUNS)).fullmatch(text):
                            yield from self._fitting(group, relation, match.groupdict())

    def _fitting(self, group: str, relation: str, fields: dict[str, str]) -> Iterator[tuple[str, ...]]:
        """The members of a group whose relation has the value that is named, or that of another person."""
        wanted = {((self.entities[name]),) for name in self.things(fields.get("v", ""))}
        likes = (self.facts[name].get(relation) for name in self.things(fields.get("w", "")))
        wanted |= {values for values in likes if values}
        for thing in self.things(fields["x"]):
            for member in self.facts[thing].get(group, ()):
                assert isinstance(member, Entity)
                fits = fields.get("noun", member.noun) == member.noun
                if fits and self.facts[member.name].get(relation) in wanted:
                    yield member.answers
