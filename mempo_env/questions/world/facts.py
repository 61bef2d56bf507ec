"""A corner of the synthetic world: fifty things with names, and what is true of them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from msgspec import Struct

from mempo_env.questions.world.names import WORDS, stem

SIZE = 50
"""Things, and so articles, in a cluster."""
BLOCK = 128
"""Words that a cluster may use."""
CLUSTERS = WORDS // BLOCK
"""How many clusters there can be."""

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
TOWN_ENDINGS = ("mar", "vik", "holm", "stad", "foss", "burg")
SURNAME_ENDINGS = ("k", "n", "r", "l", "sen", "ndt", "sk", "m")
ENDINGS = ("n", "r", "l", "s", "m")
GIVEN_ENDINGS = ("", "n", "l", "r")

ROLES = (
    *["novelist"] * 4,
    *["actor"] * 4,
    *["film director"] * 2,
    *["composer"] * 2,
    *["painter"] * 2,
    *["engineer"] * 2,
    "architect",
    "explorer",
)
ORGS = (
    ("publisher", "{} Press", "publishing house", False),
    ("publisher", "{} Publishing House", "publishing house", True),
    ("studio", "{} Pictures", "film studio", False),
    ("company", "{} Shipyard", "shipyard", True),
    ("company", "{} Brewery", "brewery", True),
    ("museum", "{} Gallery", "museum", True),
    ("university", "{} University", "university", False),
    ("university", "{} Academy", "university", True),
)
TITLES = {
    "novel": (
        "The Orchard of {}",
        "The Lanterns of {}",
        "A Winter in {}",
        "The Widow of {}",
        "Letters to {}",
    ),
    "film": ("Night Train to {}", "The {} Affair", "Farewell to {}", "The Road from {}"),
    "opera": ("The Daughter of {}", "{} Betrayed", "The Siege of {}"),
    "painting": ("Evening near {}", "Boats at {}", "The Baker of {}"),
}


class Entity(Struct, frozen=True, kw_only=True):
    """A person, place, work, organisation or voyage with an article of its own.

    Attributes:
        name: Its title, unique in the world.
        kind: Which facts it has (a key of `grammar.FACTS`).
        noun: What it is called in a sentence.
        the: Whether "the" stands before the name.
        alias: A second name; empty if it has none.
        female: Of a person.
        twin: Name of another thing that is nearly called the same; empty if there is none.
    """

    name: str
    kind: str
    noun: str
    the: bool = False
    alias: str = ""
    female: bool = False
    twin: str = ""

    @property
    def text(self) -> str:
        """The name as it stands within a sentence."""
        return f"the {self.name}" if self.the else self.name

    @property
    def answers(self) -> tuple[str, ...]:
        """What counts as naming it."""
        return (self.name, self.alias) if self.alias else (self.name,)


class Literal(Struct, frozen=True):
    """A date or a number: its text, what else counts as naming it, and its order."""

    text: str
    answers: tuple[str, ...]
    key: tuple[int, ...]


Value = Entity | Literal
Facts = dict[str, dict[str, tuple[Value, ...]]]
"""The values of each relation of each name; one each, save for the relations in `phrases.GROUPS`."""


def words(seed: int, cluster: int) -> Iterator[str]:
    """The stems that only this cluster may use."""
    return (stem(seed, cluster * BLOCK + number) for number in range(BLOCK))


def number(value: int) -> Literal:
    """A year or an amount; from ten thousand on with a comma."""
    text = f"{value:,}" if value >= 10_000 else str(value)
    return Literal(text, tuple(dict.fromkeys((text, str(value)))), (value,))


def day(chance: Random, year: int) -> Literal:
    """A day of a year, with the American way to write it as an alias."""
    month, date = chance.randrange(12), chance.randint(1, 28)
    text = f"{date} {MONTHS[month]} {year}"
    return Literal(text, (text, f"{MONTHS[month]} {date}, {year}"), (year, month, date))


def year_of(facts: Facts, entity: Entity, relation: str) -> int:
    """The year of a fact."""
    (value,) = facts[entity.name][relation]
    assert isinstance(value, Literal)
    return value.key[0]


class Draft:
    """A cluster in the making: chance, unused words, things and facts so far."""

    def __init__(self, seed: int, cluster: int) -> None:
        self.chance = Random(f"world {seed} {cluster}")
        self.words = words(seed, cluster)
        self.facts: Facts = {}
        self.entities: list[Entity] = []

    def name(self, endings: tuple[str, ...]) -> str:
        """A new word with one of the endings, capitalised."""
        return (next(self.words) + self.chance.choice(endings)).capitalize()

    def alias(self, endings: tuple[str, ...], share: float) -> str:
        """A second name for this share of those who ask, else none."""
        return self.name(endings) if self.chance.random() < share else ""

    def add(self, entity: Entity, **facts: Value | tuple[Value, ...]) -> Entity:
        """Put a thing into the world."""
        self.entities.append(entity)
        self.tell(entity, **facts)
        return entity

    def tell(self, entity: Entity, **facts: Value | tuple[Value, ...]) -> None:
        """Add facts about a thing."""
        for relation, value in facts.items():
            held = self.facts.setdefault(entity.name, {})
            held[relation] = value if isinstance(value, tuple) else (value,)

    def of(self, kind: str, noun: str = "") -> list[Entity]:
        """The things of a kind, or of those the ones with a noun."""
        return [entity for entity in self.entities if entity.kind == kind and noun in ("", entity.noun)]

    def adults(self, year: int) -> list[Entity]:
        """People who are 24 to 55 years old in a year."""
        return [
            person for person in self.of("person") if 24 <= year - year_of(self.facts, person, "born") <= 55
        ]


def make(seed: int, cluster: int) -> tuple[tuple[Entity, ...], Facts]:
    """The things and facts of a cluster; the same for the same numbers, whatever the size of the world."""
    draft = Draft(seed, cluster)
    _places(draft)
    _people(draft)
    _organisations(draft)
    _works(draft)
    _lives(draft)
    assert len(draft.entities) == SIZE
    return tuple(draft.entities), draft.facts


def _places(draft: Draft) -> None:
    chance = draft.chance
    base = next(draft.words)
    twins = [(base + ending).capitalize() for ending in chance.sample(TOWN_ENDINGS, 2)]
    names = [*twins, *(draft.name(TOWN_ENDINGS) for _ in range(6))]
    towns = [
        Entity(
            name=name,
            kind="town",
            noun="town",
            alias=draft.alias(TOWN_ENDINGS, 0.25),
            twin=dict(zip(twins, twins[::-1], strict=True)).get(name, ""),
        )
        for name in names
    ]
    capitals = chance.sample(towns, 2)
    regions = [
        draft.add(
            Entity(name=draft.name(("land", "nia")), kind="region", noun="region"),
            capital=capital,
            area=number(chance.randint(900, 9_900)),
        )
        for capital in capitals
    ]
    sizes = chance.sample(range(2_100, 98_000), len(towns))
    for town, size in zip(towns, sizes, strict=True):
        home = regions[capitals.index(town)] if town in capitals else chance.choice(regions)
        draft.add(town, region=home, population=number(size), charter=number(chance.randint(1180, 1690)))
    draft.add(
        Entity(name=f"River {draft.name(ENDINGS)}", kind="river", noun="river", the=True),
        mouth=chance.choice(towns),
        length=number(chance.randint(40, 900)),
    )


def _people(draft: Draft) -> None:
    chance, towns = draft.chance, draft.of("town")
    roles = chance.sample(ROLES, len(ROLES))
    names: list[tuple[str, str]] = []  # name, twin
    for _ in range(2):  # two pairs who are nearly called the same
        given, family = next(draft.words), draft.name(SURNAME_ENDINGS)
        pair = [f"{(given + ending).capitalize()} {family}" for ending in chance.sample(GIVEN_ENDINGS, 2)]
        names += [(pair[0], pair[1]), (pair[1], pair[0])]
    while len(names) < len(roles):
        names.append((f"{draft.name(GIVEN_ENDINGS)} {draft.name(SURNAME_ENDINGS)}", ""))
    for (name, twin), role in zip(names, roles, strict=True):
        late = role in ("actor", "film director")
        elder = role in ("engineer", "architect", "explorer")
        born = (
            chance.randint(1886, 1900)
            if late
            else chance.randint(1822, 1848)
            if elder
            else chance.randint(1838, 1890)
        )
        share = 0.4 if role in ("novelist", "actor", "composer", "painter") else 0.0
        draft.add(
            Entity(
                name=name,
                kind="person",
                noun=role,
                alias=draft.alias(ENDINGS, share),
                female=chance.random() < 0.5,
                twin=twin,
            ),
            birthplace=chance.choice(towns),
            born=day(chance, born),
            deathplace=chance.choice(towns),
            died=day(chance, born + chance.randint(58, 91)),
        )


def _organisations(draft: Draft) -> None:
    chance, towns = draft.chance, draft.of("town")
    elders = [person for person in draft.of("person") if year_of(draft.facts, person, "born") <= 1860]
    shared = draft.name(ENDINGS)
    names = [form.format(shared if kind == "publisher" else draft.name(ENDINGS)) for kind, form, _, _ in ORGS]
    groups = chance.sample([index for index, (kind, *_) in enumerate(ORGS) if kind == "company"], 1)
    for index, (kind, _, noun, the) in enumerate(ORGS):
        share = 0.0 if kind in ("university", "museum") else 0.3
        twin = names[1 - index] if kind == "publisher" else ""
        org = draft.add(
            Entity(
                name=names[index], kind=kind, noun=noun, the=the, alias=draft.alias(ENDINGS, share), twin=twin
            ),
            seat=chance.choice(towns),
        )
        if kind == "university":
            draft.tell(org, founded=number(chance.randint(1540, 1810)))
        elif kind == "studio" or index in groups:
            pool: list[Entity] = []
            while len(pool) < 3:
                year = chance.randint(1912, 1926) if kind == "studio" else chance.randint(1866, 1882)
                pool = draft.adults(year)
            draft.tell(org, founders=tuple(chance.sample(pool, 3)), founded=number(year))
        else:
            founder = chance.choice(elders)
            year = year_of(draft.facts, founder, "born") + chance.randint(25, 40)
            draft.tell(org, founder=founder, founded=number(min(year, 1888) if kind == "publisher" else year))


def _works(draft: Draft) -> None:
    for _ in range(4):
        _work(draft, "novel", "author", "novelist", "published")
    for _ in range(3):
        _work(draft, "film", "director", "film director", "released")
    for _ in range(2):
        _work(draft, "opera", "composer", "composer", "premiered")
        _work(draft, "painting", "painter", "painter", "painted")
    chance, towns = draft.chance, draft.of("town")
    architect, explorer = draft.of("person", "architect")[0], draft.of("person", "explorer")[0]
    draft.add(
        Entity(name=f"{draft.name(ENDINGS)} Bridge", kind="bridge", noun="bridge", the=True),
        place=chance.choice(towns),
        architect=architect,
        completed=number(year_of(draft.facts, architect, "born") + chance.randint(28, 50)),
    )
    crew: list[Entity] = []
    while len(crew) < 2:
        year = year_of(draft.facts, explorer, "born") + chance.randint(26, 50)
        crew = [person for person in draft.adults(year) if person != explorer]
    members = chance.sample([explorer, *chance.sample(crew, 2)], 3)
    draft.add(
        Entity(name=f"{draft.name(ENDINGS)} Expedition", kind="expedition", noun="expedition", the=True),
        leader=explorer,
        departed=number(year),
        start=chance.choice(towns),
        members=tuple(members),
    )


def _work(draft: Draft, kind: str, relation: str, role: str, dated: str) -> None:
    chance, towns = draft.chance, draft.of("town")
    maker = chance.choice(draft.of("person", role))
    house = chance.choice(
        draft.of({"novel": "publisher", "film": "studio", "painting": "museum"}.get(kind, "university"))
    )
    year = year_of(draft.facts, maker, "born") + chance.randint(28, 52)
    if kind in ("novel", "film"):
        year = max(year, year_of(draft.facts, house, "founded") + 1)
    work = Entity(
        name=chance.choice(TITLES[kind]).format(draft.name(ENDINGS)),
        kind=kind,
        noun=kind,
        alias=draft.alias(ENDINGS, 0.25) if kind in ("novel", "film") else "",
    )
    made: dict[str, Value] = {relation: maker, dated: number(year)}
    draft.add(work, **made)
    if kind == "novel":
        draft.tell(work, publisher=house, setting=chance.choice(towns))
    elif kind == "film":
        draft.tell(work, studio=house, cast=tuple(chance.sample(draft.of("person", "actor"), 3)))
        older = [novel for novel in draft.of("novel") if year_of(draft.facts, novel, "published") < year]
        if older and chance.random() < 0.7:
            draft.tell(work, source=chance.choice(older))
    elif kind == "opera":
        writers = draft.of("person", "novelist")
        draft.tell(work, premiere=chance.choice(towns), librettist=chance.choice(writers))
    else:
        draft.tell(work, museum=house, depicts=chance.choice(towns))


def _lives(draft: Draft) -> None:
    """Schools, teachers, marriages, employers, mayors, and what people are known for."""
    chance, facts, people = draft.chance, draft.facts, draft.of("person")
    firms = [*draft.of("company"), *draft.of("publisher")]
    for person in people:
        born = year_of(facts, person, "born")
        if chance.random() < 0.75:
            draft.tell(person, school=chance.choice(draft.of("university")))
        older = [other for other in people if 8 <= born - year_of(facts, other, "born") <= 40]
        older = [other for other in older if other.name != person.twin]
        if older and chance.random() < 0.6:
            draft.tell(person, teacher=chance.choice(older))
        firm = chance.choice(firms)
        if chance.random() < 0.4 and year_of(facts, firm, "founded") <= born + 30:
            draft.tell(person, employer=firm)
        made = [work for work in draft.entities if _made(facts, work, person)]
        if made:
            draft.tell(person, work=chance.choice(made))
    single = chance.sample(people, len(people))
    while single:
        one = single.pop()
        born = year_of(facts, one, "born")
        for other in single:
            near = abs(year_of(facts, other, "born") - born) <= 15
            if other.female != one.female and near and other.name != one.twin:
                single.remove(other)
                draft.tell(one, spouse=other)
                draft.tell(other, spouse=one)
                break
    for town, mayor in zip(draft.of("town"), chance.sample(people, 5), strict=False):
        draft.tell(town, mayor=mayor)


def _made(facts: Facts, work: Entity, person: Entity) -> bool:
    makers = ("author", "director", "composer", "painter", "architect", "leader")
    return any(facts[work.name].get(relation) == (person,) for relation in makers)
