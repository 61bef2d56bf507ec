"""How the synthetic Wikipedia is asked: each relation as a noun phrase, to go on from, and as a question."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Relation(Struct, frozen=True):
    """How to speak of the value of a relation of `{x}`: `phrases` name it, `questions` ask for it.

    Phrases that end with `{x}` can be nested; the others stay readable around a plain name alone.
    """

    questions: tuple[str, ...]
    phrases: tuple[str, ...] = ()


RELATIONS: Mapping[str, Relation] = {
    "born": Relation(
        ("When was {x} born?", "On what date was {x} born?", "What is the date of birth of {x}?")
    ),
    "died": Relation(("When did {x} die?", "On what date did {x} die?", "What is the date of death of {x}?")),
    "birthplace": Relation(
        ("Where was {x} born?", "In which town was {x} born?", "What is the birthplace of {x}?"),
        ("the town where {x} was born", "the birthplace of {x}"),
    ),
    "deathplace": Relation(
        ("Where did {x} die?", "In which town did {x} die?"),
        ("the town where {x} died", "the place of death of {x}"),
    ),
    "school": Relation(
        ("At which university did {x} study?", "Which university did {x} attend?"),
        ("the university where {x} studied", "the university attended by {x}"),
    ),
    "teacher": Relation(
        ("Who was the teacher of {x}?", "Who taught {x}?", "Whose pupil was {x}?"),
        ("the teacher of {x}", "the person who taught {x}"),
    ),
    "employer": Relation(
        ("Which firm did {x} work for?", "Who was the employer of {x}?"),
        ("the firm that employed {x}", "the firm for which {x} worked"),
    ),
    "spouse": Relation(
        ("Who was the spouse of {x}?", "To whom was {x} married?"),
        ("the spouse of {x}", "the person who was married to {x}"),
    ),
    "work": Relation(
        ("What is {x} best known for?",),
        ("the work that {x} is best known for", "the best-known work of {x}"),
    ),
    "region": Relation(
        ("In which region is {x}?", "Which region is home to {x}?"),
        ("the region of {x}", "the region where {x} lies"),
    ),
    "population": Relation(("How many inhabitants does {x} have?", "What is the population of {x}?")),
    "charter": Relation(("In what year did {x} receive its charter?", "When was {x} granted a charter?")),
    "mayor": Relation(("Who was the longest-serving mayor of {x}?",), ("the longest-serving mayor of {x}",)),
    "capital": Relation(
        ("What is the capital of {x}?", "Which town is the capital of {x}?"), ("the capital of {x}",)
    ),
    "area": Relation(("How many square kilometres does {x} cover?",)),
    "mouth": Relation(
        ("In which town does {x} reach the sea?", "At which town does {x} flow into the sea?"),
        ("the town where {x} flows into the sea", "the town at the mouth of {x}"),
    ),
    "length": Relation(("How many kilometres long is {x}?",)),
    "founder": Relation(("Who founded {x}?", "Who was the founder of {x}?"), ("the founder of {x}",)),
    "founded": Relation(("In what year was {x} founded?", "When was {x} founded?")),
    "seat": Relation(
        ("In which town is {x} based?", "Where is {x} based?"),
        ("the town where {x} is based", "the town that is home to {x}"),
    ),
    "author": Relation(
        ("Who wrote {x}?", "Who is the author of {x}?"),
        ("the author of {x}", "the person who wrote {x}"),
    ),
    "publisher": Relation(
        ("Who published {x}?", "Which company published {x}?"),
        ("the company that published {x}", "the publisher of {x}"),
    ),
    "published": Relation(("In what year was {x} published?", "When was {x} first published?")),
    "setting": Relation(
        ("In which town is {x} set?", "Where is {x} set?"),
        ("the town where {x} is set", "the setting of {x}"),
    ),
    "director": Relation(
        ("Who directed {x}?", "Who is the director of {x}?"),
        ("the director of {x}", "the person who directed {x}"),
    ),
    "studio": Relation(
        ("Which studio produced {x}?", "Who produced {x}?"),
        ("the studio that produced {x}", "the producer of {x}"),
    ),
    "released": Relation(("In what year was {x} released?", "When was {x} released?")),
    "source": Relation(
        ("Which novel is {x} based on?", "On which novel is {x} based?"),
        ("the novel on which {x} is based", "the novel behind {x}"),
    ),
    "composer": Relation(
        ("Who composed {x}?", "Who is the composer of {x}?"),
        ("the composer of {x}", "the person who composed {x}"),
    ),
    "premiere": Relation(
        ("In which town was {x} first performed?", "Where did {x} have its premiere?"),
        ("the town where {x} was first performed", "the town of the premiere of {x}"),
    ),
    "premiered": Relation(
        ("In what year was {x} first performed?", "In what year did {x} have its premiere?")
    ),
    "librettist": Relation(
        ("Who wrote the libretto of {x}?",),
        ("the person who wrote the libretto of {x}", "the librettist of {x}"),
    ),
    "painter": Relation(("Who painted {x}?",), ("the painter of {x}", "the person who painted {x}")),
    "painted": Relation(("In what year was {x} painted?", "When was {x} painted?")),
    "museum": Relation(
        ("Which museum holds {x}?", "In which museum does {x} hang?"), ("the museum that holds {x}",)
    ),
    "depicts": Relation(
        ("Which town does {x} show?", "Which town is depicted in {x}?"), ("the town shown in {x}",)
    ),
    "place": Relation(("In which town is {x}?",), ("the town of {x}",)),
    "architect": Relation(
        ("Who designed {x}?", "Who was the architect of {x}?"),
        ("the architect of {x}", "the person who designed {x}"),
    ),
    "completed": Relation(("In what year was {x} completed?", "When was {x} completed?")),
    "leader": Relation(
        ("Who led {x}?", "Who was the leader of {x}?"), ("the leader of {x}", "the person who led {x}")
    ),
    "departed": Relation(("In what year did {x} set out?",)),
    "start": Relation(
        ("From which town did {x} set out?",),
        ("the town from which {x} set out", "the starting point of {x}"),
    ),
}
"""Relations that have one value; those with several are `GROUPS`."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "founders": (
        "Which of the founders of {x} {did}?",
        "Which {noun} {doing} was among the founders of {x}?",
    ),
    "cast": ("Which star of {x} {did}?", "Which {noun} {doing} played a leading role in {x}?"),
    "members": ("Which member of {x} {did}?", "Which {noun} {doing} took part in {x}?"),
}
"""Relations that have several values, and how to ask for the one of them that meets a condition."""

CONDITIONS: Mapping[str, tuple[str, str, str, str]] = {
    "birthplace": (
        "was born in {v}",
        "born in {v}",
        "was born in the same town as {w}",
        "born in the same town as {w}",
    ),
    "deathplace": (
        "died in {v}",
        "who died in {v}",
        "died in the same town as {w}",
        "who died in the same town as {w}",
    ),
    "school": (
        "studied at {v}",
        "who studied at {v}",
        "went to the same university as {w}",
        "who went to the same university as {w}",
    ),
    "teacher": (
        "was taught by {v}",
        "taught by {v}",
        "had the same teacher as {w}",
        "who had the same teacher as {w}",
    ),
}
"""Conditions on a person: did {v}, doing {v}, and the same with the value given by another person {w}."""

FIRST: Mapping[str, tuple[str, str]] = {
    "born": ("Who was born first, {a} or {b}?", "Who was born later, {a} or {b}?"),
    "died": ("Who died first, {a} or {b}?", "Who died later, {a} or {b}?"),
    "founded": ("Which was founded first, {a} or {b}?", "Which was founded later, {a} or {b}?"),
    "published": (
        "Which novel was published first, {a} or {b}?",
        "Which novel was published later, {a} or {b}?",
    ),
    "released": ("Which film was released first, {a} or {b}?", "Which film was released later, {a} or {b}?"),
    "premiered": (
        "Which opera was performed first, {a} or {b}?",
        "Which opera was performed later, {a} or {b}?",
    ),
    "painted": ("Which was painted first, {a} or {b}?", "Which was painted later, {a} or {b}?"),
    "charter": (
        "Which town received its charter first, {a} or {b}?",
        "Which town received its charter later, {a} or {b}?",
    ),
    "population": (
        "Which town has fewer inhabitants, {a} or {b}?",
        "Which town has more inhabitants, {a} or {b}?",
    ),
}
"""Relations whose values have an order: how to ask for the one with the smaller value, and the larger."""

SAME: Mapping[str, str] = {
    "birthplace": "Were {a} and {b} born in the same town?",
    "deathplace": "Did {a} and {b} die in the same town?",
    "school": "Did {a} and {b} study at the same university?",
    "region": "Are {a} and {b} in the same region?",
    "seat": "Are {a} and {b} based in the same town?",
    "publisher": "Were {a} and {b} published by the same company?",
    "director": "Were {a} and {b} directed by the same person?",
    "author": "Were {a} and {b} written by the same person?",
}
"""Yes or no questions on two of one kind."""

MAKERS: Mapping[str, str] = {
    "film": "director",
    "novel": "author",
    "opera": "composer",
    "painting": "painter",
}
"""Works and the relation to the person who made them: "Which film has the director who was born first?"."""
