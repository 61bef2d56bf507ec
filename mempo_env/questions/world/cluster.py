"""The articles of a cluster: facts told in varied English, with asides around them."""

from __future__ import annotations

import re
from functools import lru_cache
from random import Random

from msgspec import Struct

from mempo_env.questions.world import grammar
from mempo_env.questions.world.facts import GIVEN_ENDINGS, Entity, Facts, Value, make, words, year_of
from mempo_env.types import Passage, Split, passage_id

SPLIT_OF: tuple[Split, ...] = (
    *("train", "dev", "test", "train", "train", "train", "train", "train", "train", "train"),
    *("train", "dev", "test", "train", "train", "train", "dev", "test", "train", "train"),
)
"""The split of cluster i is entry i modulo 20: 14 train, 3 dev, 3 test; three clusters have all three."""


ALIAS = "alias"
"""Stands for a relation where a sentence tells a second name."""


class Cluster(Struct, frozen=True, kw_only=True):
    """Fifty things, the facts about them, and the articles that tell the facts.

    Attributes:
        number: Which cluster it is.
        split: The split of all its questions.
        entities: The things, by name.
        facts: The values of each relation of each name.
        passages: The article of each thing, by name.
        sentences: The sentence of (name, relation) that tells the fact, as it stands in the article, and of
            (name, ALIAS) the one that tells the second name.
    """

    number: int
    split: Split
    entities: dict[str, Entity]
    facts: Facts
    passages: dict[str, Passage]
    sentences: dict[tuple[str, str], str]


@lru_cache(maxsize=64)  # a small world is read twice, for articles and for questions
def cluster(seed: int, number: int) -> Cluster:
    """Write a cluster: the same for the same numbers, in any process and for any size of the world."""
    entities, facts = make(seed, number)
    writer = _Writer(Random(f"articles {seed} {number}"), entities, facts, [*words(seed, number)][::-1])
    passages: dict[str, Passage] = {}
    for entity in entities:
        text = writer.article(entity)
        passages[entity.name] = Passage(passage_id(entity.name, text), entity.name, text)
    return Cluster(
        number=number,
        split=SPLIT_OF[number % len(SPLIT_OF)],
        entities={entity.name: entity for entity in entities},
        facts=facts,
        passages=passages,
        sentences=writer.sentences,
    )


class _Writer:
    """Writes articles about things that know of each other; no thing has the `spare` words."""

    def __init__(self, chance: Random, entities: tuple[Entity, ...], facts: Facts, spare: list[str]) -> None:
        self.chance, self.facts, self.spare = chance, facts, iter(spare)
        self.by_name = {entity.name: entity for entity in entities}
        self.sentences: dict[tuple[str, str], str] = {}

    def article(self, entity: Entity) -> str:
        """The article of a thing: an opening, its facts in order, and a few asides among them."""
        asides = self._asides(entity)
        sentences: list[str] = []
        before = ""
        for group, forms in grammar.FACTS[entity.kind].items():
            if not all(relation in self.facts[entity.name] for relation in group):
                continue
            if sentences and asides and self.chance.random() < 0.5:
                before = asides.pop()
                sentences.append(before)
            if not sentences and entity.alias:
                forms = grammar.ALIAS.get(entity.kind, grammar.ALIAS_OF_ORG)
            before = self._tell(entity, group, self.chance.choice(forms), before)
            if not sentences and entity.alias:
                self.sentences[entity.name, ALIAS] = before
            self.sentences.update({(entity.name, relation): before for relation in group})
            sentences.append(before)
        return " ".join([*sentences, *asides])

    def _tell(self, entity: Entity, group: grammar.Group, form: str, before: str) -> str:
        fields = self._voice(entity, before) | self._trifles(entity)
        for relation in group:
            values = self.facts[entity.name][relation]
            fields[relation] = listed(values)
            first = values[0]
            if isinstance(first, Entity) and first.kind == "person":
                fields[f"{relation}_noun"] = first.noun
                fields["partner"] = "wife" if first.female else "husband"
        return _polish(form.format(**fields))

    def _voice(self, entity: Entity, before: str) -> dict[str, str]:
        """How to speak of the subject: by name where a pronoun could mean another of the sentence before."""
        if entity.kind == "person":
            he, his, him = ("she", "her", "her") if entity.female else ("he", "his", "him")
            family = entity.name.split()[-1]
            names = before.count(family) - before.count(entity.name)  # others of the family
            others = any(name in before for name in self.by_name if name != entity.name)
            subject = entity.name if names else family if others else self.chance.choice((he, he, family))
        else:
            he, his, him = "it", "its", "it"
            others = bool(re.search(r" [A-Z]", before.replace(entity.name, "")))
            subject = entity.text if others else self.chance.choice((he, entity.text, f"the {entity.noun}"))
        owner = his if subject == he else f"{subject}'" if subject.endswith("s") else f"{subject}'s"
        return {
            "name": entity.text,
            "Name": capital(entity.text),
            "noun": entity.noun,
            "alias": entity.alias,
            "S": capital(subject),
            "s": subject,
            "His": capital(owner),
            "he": he,
            "his": his,
            "him": him,
        }

    def _trifles(self, entity: Entity) -> dict[str, str]:
        """Details that no question asks for, from the time of the thing."""
        pick, first = self.chance.choice, self._time(entity)
        return {
            "quality": pick(grammar.QUALITIES[entity.kind]),
            "legacy": pick(grammar.LEGACIES),
            "ordinal": pick(grammar.ORDINALS),
            "trade": pick(grammar.TRADES),
            "subject": pick(grammar.SUBJECTS),
            "things": pick(grammar.THINGS),
            "n": str(self.chance.randint(3, 9)),
            "year": str(first + self.chance.randint(1, 30)),
            "kin_year": str(first - 24 + self.chance.randint(-9, 9)),
        }

    def _time(self, entity: Entity) -> int:
        """The year from which on a thing plays a part: a person at 24, a work or firm when it came to be."""
        if entity.kind == "person":
            return year_of(self.facts, entity, "born") + 24
        dated = ("founded", "published", "released", "premiered", "painted", "completed", "departed")
        years = [year_of(self.facts, entity, name) for name in dated if name in self.facts[entity.name]]
        return max([1845, *years])

    def _asides(self, entity: Entity) -> list[str]:
        forms = grammar.ASIDES[entity.kind]
        chosen = self.chance.sample(forms, min(len(forms), self.chance.randint(2, 4)))
        kin = [form for form in chosen if "{kin}" in form]
        asides = [self._aside(entity, form) for form in chosen if form not in kin[1:]]
        if entity.twin:
            twin = self.by_name[entity.twin]
            described = f"the {twin.noun} {twin.name}" if twin.kind == "person" else twin.text
            asides.append(grammar.TWIN.format(S=capital(entity.text), twin=described))
        return asides

    def _aside(self, entity: Entity, form: str) -> str:
        """An aside about others than those whom the article's facts name; they live at the time."""
        told = {value.text for values in self.facts[entity.name].values() for value in values}
        free = [other for other in self.by_name.values() if other.text not in told and other != entity]
        fields = self._voice(entity, entity.name) | self._trifles(entity)
        people = [other for other in free if other.kind == "person" and other.name != entity.twin]
        year = int(fields["year"])
        alive = [person for person in people if 18 <= year - year_of(self.facts, person, "born") <= 57]
        person = self.chance.choice(alive or people)
        described = f"the {person.noun} {person.name}"
        fields |= {"person": described, "Person": capital(described)}
        for field, fits in (("town", "town"), ("org", "publishing house"), ("actor", "actor")):
            fields[field] = self.chance.choice([other for other in free if other.noun == fits]).text
        if "{kin}" in form:
            given = (next(self.spare) + self.chance.choice(GIVEN_ENDINGS)).capitalize()
            fields["kin"] = f"{given} {entity.name.split()[-1]}"
            fields["kinship"] = self.chance.choice(("brother", "sister", "cousin", "niece"))
        return _polish(form.format(**fields))


def _polish(sentence: str) -> str:
    """Write "an" before a vowel; no name of this world starts with one."""
    return re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", sentence)


def capital(text: str) -> str:
    """The text with its first letter as a capital."""
    return text[:1].upper() + text[1:]


def listed(values: tuple[Value, ...]) -> str:
    """One value, or several as "A, B and C"."""
    texts = [value.text for value in values]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
