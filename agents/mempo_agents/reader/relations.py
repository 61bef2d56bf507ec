"""What the reader knows of English: how a relation is asked for, and how sentences tell it.

In the patterns, `{x}` is the thing that is asked about, `{v}` the value of the relation.
"""

from __future__ import annotations

from msgspec import Struct

from mempo_agents.reader.text import DATE, NAME

_TOWN = "(?:town|city|village|place|country|state|county|location)"
_SCHOOL = "(?:university|school|college)"
_WHICH = "(?:which|what)"


class Relation(Struct, frozen=True):
    """The kind of its values, how questions and noun phrases ask for it, how sentences tell it."""

    kind: str
    asks: tuple[str, ...]
    tells: tuple[str, ...]


def _place(past: str, verb: str, noun: str, *tells: str) -> Relation:
    """A place where something happened to a person: "born" with "was", "die" with "did"."""
    return Relation(
        "name",
        (
            f"(?:where|(?:in|at) {_WHICH} {_TOWN}) {verb}",
            f"{_WHICH} {_TOWN} {verb} in",
            f"(?:(?:what|where) (?:is|was) )?the (?:{noun}) of {{x}}",
            f"the {_TOWN} (?:where|in which) {{x}} {past}",
        ),
        tells,
    )


def _date(past: str, verb: str, noun: str, *tells: str) -> Relation:
    return Relation(
        "date",
        (
            f"(?:when|(?:in|on) {_WHICH} (?:year|date|day)) {verb}",
            f"(?:(?:what|when) (?:is|was) )?the (?:{noun}) of {{x}}",
            f"the (?:year|date|day) (?:when|in which|on which) {{x}} {past}",
        ),
        tells,
    )


def _maker(noun: str, verb: str, *tells: str) -> Relation:
    """Who made a work: a noun for the maker, a verb for the making."""
    return Relation(
        "name",
        (
            f"who {verb} {{x}}",
            f"(?:who (?:is|was) )?the (?:{noun}) of {{x}}",
            f"the (?:person|one|man|woman) who {verb} {{x}}",
        ),
        tells,
    )


RELATIONS: dict[str, Relation] = {
    "birthplace": _place(
        "was born",
        "was {x} born",
        "birthplace|place of birth|birth place",
        rf"[Bb]orn(?: on {DATE})? (?:in|at) {{v}}",
        rf"\((?:born )?{DATE},? (?:in|at) {{v}}",
        "birthplace was {v}",
    ),
    "deathplace": _place(
        "died",
        "did {x} die",
        "deathplace|place of death|death place",
        rf"\bdied(?: on {DATE})? (?:in|at) {{v}}",
        rf"[–-] ?{DATE},? (?:in|at) {{v}}",
        r"last years were spent in {v}",
    ),
    "born": _date(
        "was born",
        "was {x} born",
        "date of birth|birth date|birthday|year of birth",
        r"[Bb]orn on {v}",
        r"[Bb]orn in [^()]{0,60}? on {v}",
        r"\((?:[^()]*?; ?)?(?:born|b\.) ?(?:on |c\. )?{v}",
        r"\([^()–-]*?{v} ?[–-]",
        r"[Bb]orn (?:in )?{v}",
    ),
    "died": _date(
        "died",
        "did {x} die",
        "date of death|death date|year of death",
        r"\bdied on {v}",
        r"\bdied in [^()]{0,60}? on {v}",
        r"\([^()]*? ?[–-] ?{v}[^()]*\)",
        r"\(died {v}",
        r"\bdied (?:in )?{v}",
    ),
    "school": Relation(
        "name",
        (
            f"(?:at )?{_WHICH} {_SCHOOL} did {{x}} (?:study|attend|graduate)(?: at| from)?",
            "where did {x} (?:study|graduate)(?: from)?",
            f"the {_SCHOOL} where {{x}} studied",
            f"the {_SCHOOL} that {{x}} attended",
            f"the {_SCHOOL} attended by {{x}}",
        ),
        (
            "studied [a-z ]*at {v}",
            "educated at {v}",
            "attended {v}",
            "student of [a-z]+ at {v}",
            "graduated from {v}",
        ),
    ),
    "teacher": Relation(
        "name",
        (
            "(?:who was )?the teacher of {x}",
            "who taught {x}",
            "whose pupil was {x}",
            "the person who taught {x}",
        ),
        ("teacher was {v}", "taught by {v}", "pupil of {v}"),
    ),
    "employer": Relation(
        "name",
        (
            f"{_WHICH} (?:firm|company) did {{x}} work for",
            "(?:who was )?the employer of {x}",
            "the (?:firm|company) that employed {x}",
            "the (?:firm|company) for which {x} worked",
        ),
        ("worked for {v}", "employed by {v}"),
    ),
    "spouse": Relation(
        "name",
        (
            "(?:who (?:is|was) )?the (?:spouse|husband|wife) of {x}",
            "(?:who|to whom) (?:is|was) {x} married(?: to)?",
            "the person who was married to {x}",
            "{x}'s (?:spouse|husband|wife)",
        ),
        ("married to {v}", r"\bmarried {v}", "(?:wife|husband) was {v}"),
    ),
    "father": Relation(
        "name",
        ("(?:who (?:is|was) )?the father of {x}", "(?:who (?:is|was) )?{x}'s father"),
        ("(?:son|daughter|child) of {v}", "father was {v}"),
    ),
    "mother": Relation(
        "name",
        ("(?:who (?:is|was) )?the mother of {x}", "(?:who (?:is|was) )?{x}'s mother"),
        (f"(?:son|daughter|child) of {NAME}[^.]*? and (?:his wife )?{{v}}", "mother was {v}"),
    ),
    "work": Relation(
        "work",
        (
            "what (?:is|was) {x} best known for",
            "the work (?:that|for which) {x} is best known(?: for)?",
            "the best-known work of {x}",
        ),
        ("best known for {v}", "best-known achievement is {v}"),
    ),
    "region": Relation(
        "name",
        (
            f"in {_WHICH} region is {{x}}",
            f"{_WHICH} region is home to {{x}}",
            "the region of {x}",
            "the region where {x} lies",
        ),
        ("town in {v}", "town in the region of {v}"),
    ),
    "population": Relation(
        "number",
        ("how many (?:inhabitants|people) does {x} have", "(?:what is )?the population of {x}"),
        ("has {v} inhabitants", "had {v} inhabitants", "population (?:is|was|of)(?: about)? {v}"),
    ),
    "charter": Relation(
        "date",
        (
            f"(?:when|in {_WHICH} year) did {{x}} receive its charter",
            f"(?:when|in {_WHICH} year) was {{x}} granted a charter",
        ),
        ("charter (?:in|dates from) {v}",),
    ),
    "mayor": Relation(
        "name",
        ("(?:who was )?the (?:[a-z-]+ )?mayor of {x}",),
        ("mayor (?:of [^.]*? )?was {v}", "(?:^|[Tt]he ){v} was the [a-z-]+ mayor", "elected {v} as its"),
    ),
    "capital": Relation(
        "name",
        ("(?:what is |which town is )?the capital of {x}", "which town is the capital of {x}"),
        ("capital (?:of [^.]*? )?(?:is|at) {v}",),
    ),
    "area": Relation(
        "number",
        ("how many square kilometres does {x} cover", "(?:what is )?the area of {x}"),
        ("area of {v} square",),
    ),
    "mouth": Relation(
        "name",
        (
            f"(?:in|at) {_WHICH} town does {{x}} (?:reach|flow into) the sea",
            "the town where {x} (?:flows into|reaches) the sea",
            "the town at the mouth of {x}",
        ),
        ("(?:into|reaches) the sea at {v}", "mouth is at {v}"),
    ),
    "length": Relation(
        "number",
        ("how many kilometres long is {x}", "(?:what is )?the length of {x}"),
        ("is {v} kilometres long", "length of {v} kilometres"),
    ),
    "founder": _maker(
        "founder",
        "founded",
        f"(?:founded|established) in {DATE} by {{v}}",
        "(?:founded|established) by {v}",
        "founder was {v}",
    ),
    "founded": _date(
        "was founded",
        "was {x} founded",
        "year of foundation",
        r"(?:founded|established|formed|started it|started|savings)[^.]*? in {v}",
        "(?:founded|established) {v}",
    ),
    "founders": Relation(
        "names",
        ("(?:the )?founders of {x}",),
        (f"(?:founded|established) in {DATE} by {{v}}", "founders were {v}", "[Ff]riends, {v}, founded"),
    ),
    "seat": Relation(
        "name",
        (
            f"(?:where|in {_WHICH} {_TOWN}) is {{x}} (?:based|located|headquartered)",
            f"the {_TOWN} where {{x}} is based",
            f"the {_TOWN} that is home to {{x}}",
        ),
        (
            "headquarters (?:is |are )?in {v}",
            "(?:is |are )?(?:based|located|headquartered) in {v}",
            "stands in {v}",
            "main building is in {v}",
        ),
    ),
    "author": _maker(
        "author|writer",
        "wrote",
        r"\bnovel by {v}",
        "written by {v}",
        "author is {v}",
        r"\bbook by {v}",
    ),
    "publisher": Relation(
        "name",
        (
            "who published {x}",
            f"{_WHICH} company published {{x}}",
            "(?:who (?:is|was) )?the publisher of {x}",
            "the company that published {x}",
        ),
        (f"published(?: in {DATE})? by {{v}}", "publisher was {v}"),
    ),
    "published": _date(
        "was published",
        "was {x} (?:first )?published",
        "date of publication|publication date",
        "published(?: by [^.]*?)? in {v}",
        "first printing of {v}",
    ),
    "setting": Relation(
        "name",
        (f"(?:where|in {_WHICH} town) is {{x}} set", "the town where {x} is set", "the setting of {x}"),
        ("is set in {v}",),
    ),
    "director": _maker("director", "directed", "directed by {v}", "by the director {v}", r"\bfilm by {v}"),
    "studio": Relation(
        "name",
        (
            f"{_WHICH} studio produced {{x}}",
            "who produced {x}",
            "the studio that produced {x}",
            "(?:who (?:is|was) )?the producer of {x}",
        ),
        ("produced by {v}", f"released in {DATE} by {{v}}"),
    ),
    "released": _date(
        "was released",
        "was {x} released",
        "release date|date of release|publication date",
        "released (?:in|on) {v}",
        r"\b[Ii]s an? {v}\b",
    ),
    "source": Relation(
        "work",
        (
            f"(?:on )?{_WHICH} novel is {{x}} based(?: on)?",
            "the novel on which {x} is based",
            "the novel behind {x}",
        ),
        ("based on (?:the novel )?{v}", "adaptation of (?:the novel )?{v}"),
    ),
    "cast": Relation(
        "names",
        ("(?:the )?stars? of {x}", "the leading roles? in {x}"),
        ("stars {v}", "roles are played by {v}", "cast was led by {v}"),
    ),
    "composer": _maker(
        "composer", "composed", "composed by {v}", r"\bopera by {v}", "composer is {v}", "music by {v}"
    ),
    "premiere": Relation(
        "name",
        (
            f"in {_WHICH} town was {{x}} first performed",
            "where did {x} have its premiere",
            "where was {x} first performed",
            "the town where {x} was first performed",
            "the town of the premiere of {x}",
        ),
        ("first performed in {v}", "premiere in {v}"),
    ),
    "premiered": _date(
        "was first performed",
        "(?:was|did) {x} (?:first performed|have its premiere)",
        "premiere",
        "(?:first performed|premiere) in [^.]*? in {v}",
    ),
    "librettist": _maker("librettist", "wrote the libretto of", "libretto (?:was written by|is by) {v}"),
    "painter": _maker("painter", "painted", r"\bpainting by {v}", "painting made by {v}", "painted by {v}"),
    "painted": _date("was painted", "was {x} painted", "date of painting", "(?:painted|completed) in {v}"),
    "museum": Relation(
        "name",
        (f"{_WHICH} museum holds {{x}}", f"in {_WHICH} museum does {{x}} hang", "the museum that holds {x}"),
        ("hangs in {v}", "held by {v}", "kept in {v}"),
    ),
    "depicts": Relation(
        "name",
        (f"{_WHICH} town does {{x}} show", f"{_WHICH} town is depicted in {{x}}", "the town shown in {x}"),
        ("depicts the harbour of {v}", "shows [a-z ]+ in {v}"),
    ),
    "place": Relation(
        "name", (f"(?:in {_WHICH} town|where) is {{x}}", "the town of {x}"), ("bridge in {v}",)
    ),
    "architect": _maker("architect|designer", "designed", "designed by {v}", "architect was {v}"),
    "completed": _date("was completed", "was {x} completed", "completion", "completed in {v}"),
    "leader": _maker("leader", "led", "led by {v}", "whose leader, {v}"),
    "departed": Relation(
        "date",
        (f"(?:when|in {_WHICH} year) did {{x}} set out",),
        (f"led by (?:[a-z]+ )*{NAME} in {{v}}", "set out in {v}"),
    ),
    "start": Relation(
        "name",
        (
            f"from {_WHICH} town did {{x}} set out",
            "the town from which {x} set out",
            "the starting point of {x}",
        ),
        ("(?:set out|departed) from {v}",),
    ),
    "members": Relation(
        "names",
        ("(?:the )?members? of {x}",),
        ("members were {v}", "members: {v}", "namely {v}"),
    ),
    "performer": Relation(
        "name",
        ("(?:who (?:is|was) )?the (?:performer|singer) of {x}", "who (?:performed|sang) {x}"),
        ("(?:song|single|album)[^.]*? by {v}", "(?:recorded|performed|sung|written) by {v}"),
    ),
}
"""The relations by name."""
