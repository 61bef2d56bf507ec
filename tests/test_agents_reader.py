"""The parts of the scripted reader, each by hand-made text: reading, plans, comparisons, guesses."""

from __future__ import annotations

import pytest

from mempo_agents.reader.follow import follow
from mempo_agents.reader.gist import ARTICLES, excerpt, gist
from mempo_agents.reader.guess import best, spans
from mempo_agents.reader.inquiry import inquire
from mempo_agents.reader.library import Library
from mempo_agents.reader.pairs import compare, pair
from mempo_agents.reader.plans import First, Name, Of, Pick, Same, understand
from mempo_agents.reader.solve import SEARCHES, solve
from mempo_agents.reader.telling import told
from mempo_agents.reader.text import day, holds, key, quantity, sentences
from mempo_agents.view import Article
from mempo_env.questions.world import phrases

# --- Text --------------------------------------------------------------------------------------------------


def test_sentences_end_at_full_stops_that_end_no_abbreviation() -> None:
    text = 'J. R. Hale met Dr. Orm in St. Abb. He said "Go." Then he left! Was it 1900? Yes.'
    assert sentences(text) == (
        "J. R. Hale met Dr. Orm in St. Abb.",
        'He said "Go."',
        "Then he left!",
        "Was it 1900?",
        "Yes.",
    )
    assert sentences("") == ()


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("born 3 May 1901 in", (1901, 5, 3)),
        ("May 3, 1901", (1901, 5, 3)),
        ("in May 1901", (1901, 5, 0)),
        ("since 1901,", (1901, 0, 0)),
        ("12 of 345", None),
    ],
)
def test_dates(text: str, date: tuple[int, int, int] | None) -> None:
    assert day(text) == date


@pytest.mark.parametrize(("text", "number"), [("22,526 people", 22526.0), ("7.5 m", 7.5), ("none", None)])
def test_quantities(text: str, number: float | None) -> None:
    assert quantity(text) == number


def test_names_are_compared_without_case_accents_articles_and_only_whole() -> None:
    assert key("The École, Ltd.") == key("ecole ltd")
    assert holds(key("He met Ann Lee."), "ann lee")
    assert not holds(key("He met Joann Lee."), "Ann Lee")
    assert not holds(key("anything"), "")


# --- Questions that are understood -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "plan"),
    [
        ("Who wrote The Orchard of Bel?", Of("author", Name("Orchard of Bel"))),
        ("When was the novelist Ada Orm born?", Of("born", Name("Ada Orm"))),
        (
            "Where is the university where the teacher of Ada Orm studied based?",
            Of("seat", Of("school", Of("teacher", Name("Ada Orm")))),
        ),
        ("Who was born later, Ada Orm or Bo Lund?", None),
        (
            "Which film has the director who was born first, Night Train to Bel or Farewell to Orm?",
            First(
                ("Night Train to Bel", "Farewell to Orm"),
                (
                    Of("born", Of("director", Name("Night Train to Bel"))),
                    Of("born", Of("director", Name("Farewell to Orm"))),
                ),
                False,
            ),
        ),
        (
            "Did Ada Orm and Bo Lund die in the same town?",
            Same((Of("deathplace", Name("Ada Orm")), Of("deathplace", Name("Bo Lund")))),
        ),
        (
            "Which of the founders of the Bel Brewery died in Marrow Bay?",
            Pick(Of("founders", Name("Bel Brewery")), "deathplace", Name("Marrow Bay")),
        ),
        (
            "Which actor who had the same teacher as Bo Lund played a leading role in The Bel Affair?",
            Pick(Of("cast", Name("The Bel Affair")), "teacher", Of("teacher", Name("Bo Lund"))),
        ),
        ("What is represented on the cover of the album?", None),
        ("", None),
    ],
)
def test_plans(question: str, plan: object) -> None:
    if "born later" in question:
        plan = First(
            ("Ada Orm", "Bo Lund"), (Of("born", Name("Ada Orm")), Of("born", Name("Bo Lund"))), largest=True
        )
    found = understand(question)
    assert _without_articles(found) == _without_articles(plan)


def _without_articles(plan: object) -> str:
    return repr(plan).replace("The ", "")


@pytest.mark.parametrize(
    ("relation", "text", "value"),
    [
        (
            "birthplace",
            "Ada Orm was a poet. Her brother was born in Bel in 1801. Born in Vik on 2 May 1803, she",
            "Vik",
        ),
        ("born", "Ada Orm (2 May 1803 – 4 June 1880) was an English poet.", "2 May 1803"),
        ("died", "Ada Orm (2 May 1803 – 4 June 1880) was an English poet.", "4 June 1880"),
        ("born", "Bo Lund (born March 3, 1950) is a Swedish actor.", "March 3, 1950"),
        (
            "director",
            "It is a 1950 film directed by American film director Bo Lund and starring others.",
            "Bo Lund",
        ),
        ("mayor", "The novelist Ada Orm was the longest-serving mayor of Vik.", "Ada Orm"),
        ("work", "Today she is best known for A Winter in Bel.", "A Winter in Bel"),
        ("population", "At the last census the town had 22,526 inhabitants.", "22,526"),
    ],
)
def test_sentences_tell_relations(relation: str, text: str, value: str) -> None:
    found = told(relation, text)
    assert found is not None
    assert found[0] == (value,)


def test_a_list_is_told_name_by_name() -> None:
    found = told("founders", "Three friends, Ada Orm, Bo Lund and Cy Vik, founded it in 1850.")
    assert found is not None
    assert found[0] == ("Ada Orm", "Bo Lund", "Cy Vik")


def test_what_is_told_of_a_relative_is_not_told_of_the_subject() -> None:
    assert told("deathplace", "Her sister Eva Orm died in Bel in 1870.") is None


ADA = Article("Ada Orm", "Ada Orm, also known as Ormia, was a poet. She was born in Vik on 2 May 1803.")
BO = Article("Bo Lund", "Bo Lund was a painter. He was born in Vik on 7 May 1801.")
VIK = Article("Vik", "Vik is a town in Belland. Its mayor was the poet Ada Orm.")


def test_a_plan_says_what_it_misses_and_what_it_used() -> None:
    plan = Of("region", Of("birthplace", Name("Ormia")))
    first = follow(plan, Library([]))
    assert (first.values, first.queries[0], first.support) == ((), "Ormia", ())
    second = follow(plan, Library([ADA]))
    assert (second.values, second.queries[0]) == ((), "Vik")
    assert second.support == (ADA,), (
        "the sentence with the other name is needed as much as the one with the fact"
    )
    third = follow(plan, Library([*second.support, VIK]))
    assert third.values == ("Belland",)
    assert third.support[1] == Article("Vik", "Vik is a town in Belland.")


def test_the_support_is_all_that_is_needed() -> None:
    plan = First(("Ada Orm", "Bo Lund"), (Of("born", Name("Ada Orm")), Of("born", Name("Bo Lund"))), False)
    outcome = follow(plan, Library([ADA, BO, VIK]))
    assert outcome.values == ("Bo Lund",)
    assert follow(plan, Library(outcome.support)).values == ("Bo Lund",)


def test_two_missing_things_are_looked_for_in_one_search_first() -> None:
    plan = Same((Of("birthplace", Name("Ada Orm")), Of("birthplace", Name("Bo Lund"))))
    assert follow(plan, Library([])).queries[:2] == ("Ada Orm Bo Lund", "Ada Orm")
    assert follow(plan, Library([ADA, BO])).values == ("yes",)


def test_look_alikes_are_told_apart() -> None:
    twin = Article("Ada Orms", "Ada Orms was a baker. She was born in Bel on 1 May 1700.")
    plan = Of("birthplace", Name("Ada Orm"))
    assert follow(plan, Library([twin])).values == ()
    assert follow(plan, Library([twin, ADA])).values == ("Vik",)


# --- Questions about two things ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "two"),
    [
        ("Which magazine came first, Home Sky or The Bel Review?", ("Home Sky", "The Bel Review", "which")),
        ("Were Ada Orm and Bo Lund both Danish?", ("Ada Orm", "Bo Lund", "whether")),
        ("What profession do Ada Orm and Bo Lund have in common?", ("Ada Orm", "Bo Lund", "what")),
        ("Which of Ada Orm and Bo Lund wrote more?", ("Ada Orm", "Bo Lund", "which")),
    ],
)
def test_pairs(question: str, two: tuple[str, str, str]) -> None:
    found = pair(question)
    assert found is not None
    assert (found.a, found.b, found.asks) == two


def test_no_pair_where_two_names_merely_stand_together() -> None:
    assert pair("Which actor starred with Ada Orm and Bo Lund in 1990?") is None


MAGAZINES = [
    Article("Home Sky", "Home Sky was a Danish magazine. It was first printed in 1901. It had 90 readers."),
    Article(
        "Bel Review",
        "Bel Review is a Danish magazine and web site. It was first printed in 1850. It has 7,000 readers.",
    ),
]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Which magazine is older, Home Sky or Bel Review?", "Bel Review"),
        ("Which magazine is newer, Home Sky or Bel Review?", "Home Sky"),
        ("Which magazine has more readers, Home Sky or Bel Review?", "Bel Review"),
        ("Which magazine has fewer readers, Home Sky or Bel Review?", "Home Sky"),
        ("Which magazine has a web site, Home Sky or Bel Review?", "Bel Review"),
        ("Are Home Sky and Bel Review both magazines?", "yes"),
        ("Are Home Sky and Bel Review both novels?", "no"),
        ("Are Home Sky and Bel Review from the same country?", "yes"),
        ("What do Home Sky and Bel Review have in common?", "magazine"),
    ],
)
def test_comparisons(question: str, answer: str) -> None:
    two = pair(question)
    assert two is not None
    assert compare(question, two, Library(MAGAZINES)).values == (answer,)


def test_a_comparison_looks_for_what_is_missing() -> None:
    question = "Which is older, Home Sky or Bel Review?"
    two = pair(question)
    assert two is not None
    assert compare(question, two, Library([])).queries[0] == "Home Sky Bel Review"
    assert compare(question, two, Library(MAGAZINES[:1])).queries == ("Bel Review",)


# --- Other questions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "kind", "noun"),
    [
        ("Who led the band?", "person", ""),
        ("The actor who led the band was born in what year?", "year", "year"),
        ("Where does the team play?", "place", ""),
        ("When did it close?", "date", ""),
        ("How many rooms does the hotel have?", "number", "room"),
        ("Which Danish rock band recorded it?", "name", "band"),
        ("What is the name of the singer of the band?", "person", "singer"),
        ("What nationality was the director?", "adjective", "nation"),
    ],
)
def test_what_is_asked_for(question: str, kind: str, noun: str) -> None:
    inquiry = inquire(question)
    assert (inquiry.kind, inquiry.noun) == (kind, noun)


def test_names_of_a_question() -> None:
    names = inquire('In which film "Speed of Bel" did Ada Orm of the Vik Theatre sing?').names
    assert names == ("Speed of Bel", "Ada Orm of the Vik Theatre")


def test_spans_are_names_without_the_capital_of_the_sentence() -> None:
    def texts(sentence: str, kind: str) -> list[str]:
        return [sentence[start:end] for start, end in spans(sentence, kind)]

    assert texts("In Vik the Bel Band sang.", "name") == ["Vik", "Bel Band"]
    assert texts("It opened on 3 May 1901 with 40 rooms.", "date") == ["3 May 1901"]
    assert texts("It has 40 rooms and 1,200 seats.", "number") == ["40", "1,200"]


def test_an_excerpt_of_an_excerpt_is_the_same() -> None:
    article = Article(
        "Bel Band", "Bel Band is a band. It rained. Ada Orm sang. They toured. Bo Lund drummed."
    )
    question = "Who drummed for the band in which Ada Orm sang?"
    short = excerpt(question, article)
    assert short.text == "Bel Band is a band. Ada Orm sang. Bo Lund drummed."
    assert excerpt(question, short) == short


def test_the_gist_is_short_and_leads_with_what_is_named() -> None:
    others = [Article(f"Hill {i}", "A hill. It rained there. Nobody sang.") for i in range(9)]
    found = gist(
        "Who sang in the Bel Band?", Library([*others, Article("Bel Band", "A band. Ada Orm sang.")])
    )
    assert len(found) == ARTICLES
    assert found[0].title == "Bel Band"


def test_a_guess_follows_the_link_from_the_named_article() -> None:
    articles = (
        Article("Night Sky", "Night Sky is a song recorded by Bel Band."),
        Article("Bel Band", "Bel Band is a rock band from Vik. It was founded in 1960."),
        Article("Orm Band", "Orm Band is a rock band from Belland. It was founded in 1970."),
    )
    assert best("In what year was the rock band that recorded Night Sky founded?", articles) == "1960"


def test_an_open_question_ends_after_some_searches() -> None:
    question = "Which rock band recorded Night Sky?"
    articles = [Article("Night Sky", "Night Sky is a song. The rock band Bel Band recorded it with Cy Hale.")]
    first = solve(question, Library([]), (), frozenset())
    assert first.queries == (question, "Night Sky")
    asked = (question, "Night Sky")
    later = solve(question, Library(articles), asked, frozenset(map(key, asked)))
    assert later.queries == ("Bel Band", "Cy Hale")
    asked = tuple(f"query {i}" for i in range(SEARCHES))
    last = solve(question, Library(articles), asked, frozenset())
    assert (last.queries, last.answer) == ((), "Bel Band")


def test_no_search_is_made_again() -> None:
    question = "When was Ada Orm born?"
    seen = frozenset(map(key, ["ADA ORM", "Ada Orm born?"]))
    outcome = solve(question, Library([]), ("Ada Orm", "Ada Orm born"), seen)
    assert not seen & set(map(key, outcome.queries))
    assert set(outcome.again) >= {"Ada Orm", "Ada Orm born"}


@pytest.mark.parametrize("relation", sorted(phrases.RELATIONS))
def test_every_wording_of_the_synthetic_world_is_understood(relation: str) -> None:
    """A new wording must not pass unnoticed: the reader would fail, and memory be blamed."""
    name = "Road from Vijefain" if relation == "source" else "Mirabel Tavek"
    for question in phrases.RELATIONS[relation].questions:
        assert understand(question.format(x=name)) == Of(relation, Name(name)), question
    for phrase in phrases.RELATIONS[relation].phrases:
        nested = understand(f"When was {phrase.format(x=name)} born?")
        assert nested == Of("born", Of(relation, Name(name))), phrase
