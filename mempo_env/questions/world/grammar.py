"""The English of the synthetic Wikipedia: how a fact is told, how it is asked for, and what stands around it.

In a sentence, `{S}`, `{s}` and `{His}` stand for the subject of the article (first, within, possessive);
`{he}`, `{his}`, `{him}` are pronouns that follow one of them; `{name}` is the full name, `{noun}` what it is;
other fields are the values of the facts, by relation, or chance (`{year}`, `{town}`, `{person}`, `{n}`, ...).
"""

from __future__ import annotations

from collections.abc import Mapping

Group = tuple[str, ...]
"""Relations that one sentence tells."""

_ORG: Mapping[Group, tuple[str, ...]] = {
    (): (
        "{Name} is a {quality} {noun}.",
        "{Name} is a {noun} of long standing.",
        "{Name} is a {quality} {noun} with {n} branches.",
    ),
    ("founder", "founded"): (
        "{S} was founded in {founded} by {founder}.",
        "{S} was established by the {founder_noun} {founder} in {founded}.",
        "{His} founder was the {founder_noun} {founder}, who started it in {founded}.",
    ),
    ("founders", "founded"): (
        "{S} was founded in {founded} by {founders}.",
        "{His} founders were {founders}, who pooled their savings in {founded}.",
        "Three friends, {founders}, founded {s} in {founded}.",
    ),
    ("seat",): (
        "{S} has its headquarters in {seat}.",
        "{S} is based in {seat}.",
        "{His} headquarters are in {seat}, in a former granary.",
    ),
}

FACTS: Mapping[str, Mapping[Group, tuple[str, ...]]] = {
    "person": {
        (): (
            "{Name} was a {quality} {noun}.",
            "{Name} was a {noun} whose {legacy} are still discussed.",
            "{Name} was a {quality} {noun} and collector of {things}.",
        ),
        ("birthplace", "born"): (
            "{S} was born in {birthplace} on {born}.",
            "{S} was born on {born} in {birthplace}, the {ordinal} of {n} children.",
            "Born in {birthplace} on {born}, {s} grew up above a {trade}'s shop.",
            "{His} birthplace was {birthplace}, where {he} was born on {born}.",
        ),
        ("school",): (
            "{S} studied {subject} at {school}.",
            "{S} was educated at {school}, where {he} read {subject}.",
            "{S} attended {school} and took a degree in {subject}.",
            "{S} was a student of {subject} at {school}.",
        ),
        ("teacher",): (
            "{His} teacher was the {teacher_noun} {teacher}.",
            "{S} was taught by {teacher}, who lent {him} books and money.",
            "{S} was a pupil of the {teacher_noun} {teacher}.",
        ),
        ("employer",): (
            "For some years {s} worked for {employer}.",
            "{S} was employed by {employer} until {year}.",
            "{S} earned a living as a clerk and worked for {employer}.",
        ),
        ("spouse",): (
            "{S} was married to the {spouse_noun} {spouse}.",
            "{S} married {spouse}, a {spouse_noun}, after a short courtship.",
            "{His} {partner} was the {spouse_noun} {spouse}.",
        ),
        ("work",): (
            "{S} is best known for {work}.",
            "{His} best-known achievement is {work}.",
            "Today {s} is best known for {work}.",
        ),
        ("deathplace", "died"): (
            "{S} died in {deathplace} on {died}.",
            "{S} died on {died} in {deathplace}, where a street bears the name.",
            "{His} last years were spent in {deathplace}, where {he} died on {died}.",
        ),
    },
    "town": {
        ("region",): (
            "{Name} is a town in {region}.",
            "{Name} is a {quality} market town in the region of {region}.",
            "{Name} is a port and town in {region}.",
        ),
        ("population",): (
            "{S} has {population} inhabitants.",
            "{His} population is {population}.",
            "At the last census {s} had {population} inhabitants.",
        ),
        ("charter",): (
            "{S} received its charter in {charter}.",
            "{S} was granted a charter in {charter}.",
            "{His} charter dates from {charter}.",
        ),
        ("mayor",): (
            "{His} longest-serving mayor was the {mayor_noun} {mayor}.",
            "The {mayor_noun} {mayor} was the longest-serving mayor of {name}.",
            "The longest-serving mayor of {name} was {mayor}.",
        ),
    },
    "region": {
        (): (
            "{Name} is a region of {quality} hills and marshes.",
            "{Name} is a coastal region.",
        ),
        ("capital",): (
            "{His} capital is {capital}.",
            "{S} has its capital at {capital}.",
            "The capital of {name} is {capital}.",
        ),
        ("area",): (
            "{S} covers an area of {area} square kilometres.",
            "{S} has an area of {area} square kilometres.",
        ),
    },
    "river": {
        (): ("{Name} is a river with a {quality} valley.", "{Name} is a slow river."),
        ("mouth",): (
            "{S} flows into the sea at {mouth}.",
            "{S} reaches the sea at {mouth}.",
            "{His} mouth is at {mouth}.",
        ),
        ("length",): ("{S} is {length} kilometres long.", "{S} has a length of {length} kilometres."),
    },
    "publisher": _ORG,
    "studio": _ORG,
    "company": _ORG,
    "museum": {
        **_ORG,
        (): (
            "{Name} is a {noun} with a {quality} collection.",
            "{Name} is a {noun} of paintings and curiosities.",
        ),
        ("seat",): (
            "{S} is located in {seat}.",
            "{S} stands in {seat}.",
            "{S} is based in {seat}, near the old gate.",
        ),
    },
    "university": {
        (): ("{Name} is a {noun} of some {n} hundred students.", "{Name} is a {quality} {noun}."),
        ("founded",): (
            "{S} was founded in {founded}.",
            "{S} was established in {founded}, after a long dispute.",
        ),
        ("seat",): (
            "{S} is located in {seat}.",
            "{S} is based in {seat}.",
            "{His} main building is in {seat}.",
        ),
    },
    "novel": {
        ("author",): (
            "{Name} is a novel by {author}.",
            "{Name} is a {quality} novel written by the {author_noun} {author}.",
            "{Name} is a novel whose author is {author}.",
        ),
        ("publisher", "published"): (
            "{S} was published by {publisher} in {published}.",
            "{S} was first published in {published} by {publisher}.",
            "{His} publisher was {publisher}, and the first printing of {published} sold out.",
        ),
        ("setting",): ("{S} is set in {setting}.", "The story is set in {setting} during a hard winter."),
    },
    "film": {
        ("director",): (
            "{Name} is a film directed by {director}.",
            "{Name} is a {quality} film by the director {director}.",
            "{Name} is a black-and-white film that was directed by {director}.",
        ),
        ("studio", "released"): (
            "{S} was produced by {studio} and released in {released}.",
            "{S} was released in {released} by {studio}, which produced it.",
        ),
        ("cast",): (
            "{S} stars {cast}.",
            "The leading roles are played by {cast}.",
            "{His} cast was led by {cast}.",
        ),
        ("source",): (
            "The script is based on the novel {source}.",
            "{S} is an adaptation of the novel {source}.",
        ),
    },
    "opera": {
        ("composer",): (
            "{Name} is an opera by {composer}.",
            "{Name} is an opera in {n} acts composed by {composer}.",
            "{Name} is a {quality} opera whose composer is {composer}.",
        ),
        ("premiere", "premiered"): (
            "{S} was first performed in {premiere} in {premiered}.",
            "{S} had its premiere in {premiere} in {premiered}.",
        ),
        ("librettist",): (
            "The libretto was written by the {librettist_noun} {librettist}.",
            "{His} libretto is by {librettist}.",
        ),
    },
    "painting": {
        ("painter",): (
            "{Name} is a painting by {painter}.",
            "{Name} is a {quality} painting made by the {painter_noun} {painter}.",
        ),
        ("painted",): ("{S} was painted in {painted}.", "{S} was completed in {painted} and painted in oil."),
        ("museum",): ("{S} hangs in {museum}.", "{S} is held by {museum}.", "Today {s} is kept in {museum}."),
        ("depicts",): ("{S} depicts the harbour of {depicts}.", "{S} shows a market day in {depicts}."),
    },
    "bridge": {
        ("place",): ("{Name} is a bridge in {place}.", "{Name} is a {quality} stone bridge in {place}."),
        ("architect", "completed"): (
            "{S} was designed by {architect} and completed in {completed}.",
            "{His} architect was {architect}, and the work was completed in {completed}.",
        ),
    },
    "expedition": {
        ("leader", "departed"): (
            "{Name} was an expedition led by {leader} in {departed}.",
            "{Name} was a voyage to the ice whose leader, {leader}, set out in {departed}.",
        ),
        ("start",): ("{S} set out from {start}.", "{S} departed from {start} in the spring."),
        ("members",): (
            "{His} members were {members}.",
            "{S} had three members: {members}.",
            "Only three people took part in {s}, namely {members}.",
        ),
    },
}
"""For each kind of article, in the order of telling, how to tell a group of facts; the first opens it."""

ASIDES: Mapping[str, tuple[str, ...]] = {
    "person": (
        "{His} {kinship} {kin}, a {trade}, was born in {town} in {kin_year}.",
        "{His} {kinship} {kin} died in {town} in {year}.",
        "{His} {kinship} {kin} studied law and never left {town}.",
        "In {year} {s} spent a winter in {town} as the guest of {person}.",
        "A plaque in {town} honours {him}.",
        "{S} quarrelled for years with {person}.",
        "{S} turned down an invitation to move to {town}.",
        "{S} kept bees and collected {things}.",
        "{S} lost {his} savings in {year} and never spoke of it.",
        "A house with a garden in {town} is wrongly said to be {his} design.",
        "{S} learned the violin late and played it badly.",
    ),
    "town": (
        "A road of {n} kilometres leads to {town}.",
        "{Person} kept a summer house there.",
        "The market of {town} is larger.",
        "A fire destroyed {n} houses in {year}.",
        "The old walls are lined with {things}.",
    ),
    "region": (
        "The oldest market of the region is held in {town}.",
        "The region is known for its {things}.",
        "{Person} wrote about its marshes.",
    ),
    "river": (
        "A ferry crosses it near {town}.",
        "Its water once drove {n} mills.",
        "{Person} nearly drowned in it in {year}.",
    ),
    "publisher": (
        "A branch in {town} was closed in {year}.",
        "{Person} sat on its board for {n} years.",
        "At its height it had {n} employees.",
        "It also sold maps and {things}.",
    ),
    "museum": (
        "A second house in {town} was closed in {year}.",
        "{Person} left it a collection of {things}.",
        "It has {n} rooms.",
    ),
    "university": (
        "A faculty in {town} was closed in {year}.",
        "{Person} gave lectures there on {things}.",
        "Its library holds {n} thousand volumes.",
    ),
    "novel": (
        "An earlier draft was rejected by {org}.",
        "{Person} disliked the book and said so.",
        "A stage version was shown in {town} in {year}.",
        "Its {n} chapters are named after {things}.",
    ),
    "film": (
        "The role of the widow was first offered to the actor {actor}.",
        "Some scenes were shot in {town}.",
        "It lost money in its first {n} weeks.",
        "A quarrel over {things} delayed the shooting.",
    ),
    "opera": (
        "A revival in {town} failed in {year}.",
        "{Person} left the hall before the end.",
        "The score asks for {n} horns.",
    ),
    "painting": (
        "It was stolen from a house in {town} in {year}.",
        "{Person} offered a high price for it in vain.",
        "The frame is decorated with {things}.",
    ),
    "bridge": (
        "A similar bridge in {town} collapsed in {year}.",
        "It has {n} arches.",
        "{Person} called it ugly.",
    ),
    "expedition": (
        "{Person} paid for the ships but stayed at home.",
        "A search party from {town} returned in {year} without news.",
        "The crew brought back {n} crates of {things}.",
    ),
}
ASIDES = {**ASIDES, "studio": ASIDES["publisher"], "company": ASIDES["publisher"]}
"""Facts that no question asks for, near the others in wording, about other people, places and years."""

TWIN = "{S} should not be confused with {twin}."
ALIAS = {
    "person": ("{Name}, also known as {alias}, was a {noun}.", "{Name} was a {noun} also known as {alias}."),
    "town": ("{Name}, formerly known as {alias}, is a town in {region}.",),
    "novel": ("{Name}, also known as {alias}, is a novel by {author}.",),
    "film": ("{Name}, also known as {alias}, is a film directed by {director}.",),
}
"""First sentences of those that have a second name."""
ALIAS_OF_ORG = ("{Name}, also known as {alias}, is a {noun}.",)

_PERSON = ("celebrated", "prolific", "stubborn", "influential", "modest", "restless", "admired", "forgotten")
_PLACE = ("quiet", "green", "windy", "remote", "lively", "low-lying", "prosperous")
_FIRM = ("small", "respected", "cautious", "family-run", "well-known")
_WORK = ("long", "quiet", "popular", "daring", "melancholy", "early", "late")
QUALITIES: Mapping[str, tuple[str, ...]] = {
    "person": _PERSON,
    **dict.fromkeys(("town", "region", "river"), _PLACE),
    **dict.fromkeys(("publisher", "studio", "company", "museum", "university"), _FIRM),
    **dict.fromkeys(("novel", "film", "opera", "painting", "bridge", "expedition"), _WORK),
}
LEGACIES = ("letters", "notebooks", "methods", "opinions", "early works", "public lectures")
ORDINALS = ("second", "third", "youngest", "eldest")
TRADES = ("baker", "cooper", "tailor", "saddler", "chandler", "printer", "miller", "notary", "weaver")
SUBJECTS = ("law", "medicine", "mathematics", "rhetoric", "chemistry", "theology", "botany", "history")
THINGS = (
    "beetles",
    "clocks",
    "ferns",
    "wild roses",
    "old coins",
    "seashells",
    "cherry trees",
    "lanterns",
    "mosses",
)
