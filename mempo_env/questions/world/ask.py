"""Questions on a cluster, each with exactly one answer, and the sentences that give it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from random import Random

from msgspec import Struct

from mempo_env.questions.world.cluster import ALIAS, Cluster
from mempo_env.questions.world.facts import Entity, Literal, Value
from mempo_env.questions.world.phrases import CONDITIONS, FIRST, GROUPS, MAKERS, RELATIONS, SAME
from mempo_env.types import Evidence, Question

TRIES = 30
"""Draws of one form before the next form has its turn."""


class Draft(Struct, frozen=True):
    """A question in the making.

    Attributes:
        kind: "bridge", "comparison" or "intersection".
        text: The question.
        answers: What counts as right.
        mentions: What the question calls the things it starts from: their names or aliases.
        steps: The things in whose articles an answerer must look, each with the relation that it needs there.
    """

    kind: str
    text: str
    answers: tuple[str, ...]
    mentions: tuple[str, ...]
    steps: tuple[tuple[Entity, str], ...]


Finder = Callable[[Collection[str]], bool]
"""Whether a search for each of some names ranks its article high enough."""

Form = Callable[[Random, Cluster], Draft | None]
"""Draws a question of one form; None if the draw led nowhere."""


def ask(cluster: Cluster, wanted: int, finds: Finder, seed: int) -> Iterator[Question]:
    """Different questions on a cluster, at most `wanted`; with a smaller number the first of the same.

    Args:
        cluster: What to ask about.
        wanted: How many questions.
        finds: Whether each of some names and aliases finds its article; others are not relied upon.
        seed: Of the world.
    """
    chance = Random(f"questions {seed} {cluster.number}")
    first = chance.randrange(len(_FORMS))
    asked: set[tuple[str, ...]] = set()
    for number in range(wanted):
        turns = (_FORMS[(first + number + turn) % len(_FORMS)] for turn in range(len(_FORMS)))
        drafts = (_draw(form, chance, cluster, finds, asked) for form in turns)
        draft = next((draft for draft in drafts if draft is not None), None)
        if draft is None:
            return
        yield _question(cluster, draft, f"w{seed}-{cluster.number}-{number}")


def _draw(
    form: Form, chance: Random, cluster: Cluster, finds: Finder, asked: set[tuple[str, ...]]
) -> Draft | None:
    """A new question of a form whose every step can be found, if some draws give one."""
    for _ in range(TRIES):
        draft = form(chance, cluster)
        if draft is None:
            continue
        key = (draft.kind, *sorted(f"{entity.name}/{relation}" for entity, relation in draft.steps))
        if key not in asked and finds((*draft.mentions, *(entity.name for entity, _ in draft.steps))):
            asked.add(key)
            return draft
    return None


def _question(cluster: Cluster, draft: Draft, id: str) -> Question:
    sentences: dict[str, list[str]] = {}
    for entity, relation in draft.steps:
        renamed = entity.alias in draft.mentions
        told = [cluster.sentences[entity.name, key] for key in ([ALIAS] if renamed else []) + [relation]]
        held = sentences.setdefault(entity.name, [])
        held += [sentence for sentence in dict.fromkeys(told) if sentence not in held]
    twins = any(entity.twin for entity, _ in draft.steps)
    renames = any(mention not in cluster.entities for mention in draft.mentions)
    return Question(
        id=id,
        text=draft.text,
        answers=draft.answers,
        split=cluster.split,
        kind=draft.kind,
        level=("easy", "easy", "medium", "hard")[min(len(sentences) + twins + renames, 4) - 1],
        hops=len(sentences),
        evidence=tuple(
            Evidence(cluster.passages[name].id, name, tuple(told)) for name, told in sentences.items()
        ),
        source="synthetic",
    )


def _mention(chance: Random, entity: Entity, noun: bool = True) -> tuple[str, str]:
    """How a question speaks of a thing, now and then with its noun or by its alias; and the name in it."""
    name = entity.alias if entity.alias and chance.random() < 0.35 else entity.name
    if name == entity.name and entity.the:
        return entity.text, name
    if noun and entity.kind in ("person", *MAKERS) and chance.random() < 0.4:
        return f"the {entity.noun} {name}", name
    return name, name


def _one(cluster: Cluster, entity: Entity, relation: str) -> Value | None:
    """The only value of a relation; None if there is none, or several."""
    values = cluster.facts[entity.name].get(relation, ())
    return values[0] if len(values) == 1 else None


def _having(cluster: Cluster, relation: str, kind: str = "") -> list[Entity]:
    """The things, of a kind, that have a relation."""
    return [
        e for e in cluster.entities.values() if kind in ("", e.kind) and relation in cluster.facts[e.name]
    ]


def _described(chance: Random, relation: str, text: str, nested: bool) -> str:
    """A phrase for the value of a relation of what the text names, or already describes (nested)."""
    phrases = RELATIONS[relation].phrases
    return chance.choice([each for each in phrases if not nested or each.endswith("{x}")]).format(x=text)


def _bridge(hops: int) -> Form:
    """From a named thing over others, which the question only describes, to the answer."""

    def form(chance: Random, cluster: Cluster) -> Draft | None:
        entity = chance.choice([*cluster.entities.values()])
        text, name = _mention(chance, entity)
        steps: list[tuple[Entity, str]] = []
        for hop in range(1, hops + 1):
            passed = [entity, *(thing for thing, _ in steps)]
            options = [
                (relation, values[0])
                for relation, values in cluster.facts[entity.name].items()
                if relation in RELATIONS and len(values) == 1 and values[0] not in passed
                if hop == hops or isinstance(values[0], Entity)
            ]
            if not options:
                return None
            relation, value = chance.choice(options)
            steps.append((entity, relation))
            if hop == hops:
                text = chance.choice(RELATIONS[relation].questions).format(x=text)
                return Draft("bridge", text, value.answers, (name,), tuple(steps))
            assert isinstance(value, Entity)
            text, entity = _described(chance, relation, text, nested=hop > 1), value
        return None

    return form


def _first(chance: Random, cluster: Cluster) -> Draft | None:
    """Which of two came first, or is larger."""
    relation = chance.choice([*FIRST])
    pair = chance.sample(_having(cluster, relation), 2)
    return _compared(chance, cluster, FIRST[relation], relation, pair, pair, ())


def _maker_first(chance: Random, cluster: Cluster) -> Draft | None:
    """Whose maker was born first."""
    kind, relation = chance.choice([*MAKERS.items()])
    works = chance.sample(_having(cluster, relation, kind), 2)
    makers = [maker for work in works if isinstance(maker := _one(cluster, work, relation), Entity)]
    forms = tuple(
        f"Which {kind} has the {relation} who was born {word}, {{a}} or {{b}}?" for word in ("first", "later")
    )
    return _compared(chance, cluster, forms, "born", works, makers, tuple((work, relation) for work in works))


def _compared(
    chance: Random,
    cluster: Cluster,
    forms: tuple[str, ...],
    relation: str,
    named: list[Entity],
    measured: list[Entity],
    before: tuple[tuple[Entity, str], ...],
) -> Draft | None:
    """Ask for the thing whose measured one has the smaller or larger value; equal ones make no question."""
    values = [_one(cluster, entity, relation) for entity in measured]
    keys = [value.key[0] for value in values if isinstance(value, Literal)]
    if keys[0] == keys[1]:
        return None
    largest = chance.randrange(2)
    answer = named[keys.index((min, max)[largest](keys))]
    (a, name_a), (b, name_b) = (_mention(chance, entity, noun=False) for entity in named)
    steps = (*before, *((entity, relation) for entity in measured))
    return Draft("comparison", forms[largest].format(a=a, b=b), answer.answers, (name_a, name_b), steps)


def _same(chance: Random, cluster: Cluster) -> Draft | None:
    """Whether two things agree in something; as often yes as no, as far as there are such pairs."""
    relation = chance.choice([*SAME])
    one = chance.choice(_having(cluster, relation))
    agree = chance.random() < 0.5
    value = _one(cluster, one, relation)
    others = [
        e
        for e in _having(cluster, relation, one.kind)
        if (_one(cluster, e, relation) == value) == agree and e != one
    ]
    if not others:
        return None
    other = chance.choice(others)
    (a, name_a), (b, name_b) = (_mention(chance, entity, noun=False) for entity in (one, other))
    text = SAME[relation].format(a=a, b=b)
    return Draft(
        "comparison",
        text,
        ("yes" if agree else "no",),
        (name_a, name_b),
        ((one, relation), (other, relation)),
    )


def _intersection(hops: int) -> Form:
    """Which one of a group meets a condition; from three hops on the condition is that of another person."""

    def form(chance: Random, cluster: Cluster) -> Draft | None:
        group, relation = chance.choice([*GROUPS]), chance.choice([*CONDITIONS])
        thing = chance.choice(_having(cluster, group))
        members = cluster.facts[thing.name][group]
        answer = chance.choice([member for member in members if isinstance(member, Entity)])
        value = _one(cluster, answer, relation)
        fitting = [m for m in members if isinstance(m, Entity) and _one(cluster, m, relation) == value]
        if value is None or len(fitting) != 1:
            return None
        did, doing, did_like, doing_like = CONDITIONS[relation]
        x, name = _mention(chance, thing)
        steps = [(thing, group), (answer, relation)]
        names = [name]
        fields = {"v": value.text}
        if hops > 2:
            likes = [
                p
                for p in _having(cluster, relation)
                if p not in members and _one(cluster, p, relation) == value
            ]
            like = chance.choice(likes) if likes else None
            described = like and _introduced(chance, cluster, like, hops - 2, thing)
            if not like or not described:
                return None
            fields["w"], start, before = described
            names.append(start)
            steps += [*before, (like, relation)]
            did, doing = did_like, doing_like
        template = chance.choice(GROUPS[group])
        text = template.format(x=x, did=did.format(**fields), doing=doing.format(**fields), noun=answer.noun)
        return Draft("intersection", text, answer.answers, tuple(names), tuple(steps))

    return form


def _introduced(
    chance: Random, cluster: Cluster, person: Entity, hops: int, but: Entity
) -> tuple[str, str, list[tuple[Entity, str]]] | None:
    """How to speak of a person, by name or over a work: the text, the name in it, the steps to the person."""
    if hops == 1:
        return *_mention(chance, person), []
    works = [
        (work, relation)
        for work in cluster.entities.values()
        for relation in MAKERS.values()
        if work != but and _one(cluster, work, relation) == person
    ]
    if not works:
        return None
    work, relation = chance.choice(works)
    text, name = _mention(chance, work)
    return _described(chance, relation, text, nested=False), name, [(work, relation)]


_FORMS: tuple[Form, ...] = (
    *(
        _bridge(1),
        _bridge(2),
        _first,
        _bridge(3),
        _intersection(2),
        _bridge(2),
        _same,
        _bridge(4),
        _intersection(3),
    ),
    *(
        _bridge(2),
        _bridge(1),
        _first,
        _bridge(3),
        _intersection(2),
        _bridge(2),
        _same,
        _bridge(4),
        _intersection(4),
    ),
    *(_maker_first, _bridge(3)),
)
"""The forms in the order of their turns, as often as they are wanted."""
