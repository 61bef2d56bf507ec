"""The synthetic Wikipedia: one answer a question, told by its evidence, found by names, always the same."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_env.errors import ConfigError
from mempo_env.files import digest
from mempo_env.questions.set import QuestionSet
from mempo_env.questions.world import WorldSpec, articles, grammar, questions
from mempo_env.questions.world.cluster import Cluster, cluster
from mempo_env.questions.world.facts import BLOCK, CLUSTERS, ROLES, SIZE, Entity
from mempo_env.questions.world.names import WORDS, stem
from mempo_env.questions.world.phrases import RELATIONS
from mempo_env.types import Hit, Passage, Question, passage_id
from world_reading import World, pattern

SPEC = WorldSpec(articles=500, questions=800, seed=3)


def clusters(spec: WorldSpec) -> list[Cluster]:
    return [cluster(spec.seed, number) for number in range(spec.clusters)]


def by_name(spec: WorldSpec, unknown: frozenset[str] = frozenset()):  # type: ignore[no-untyped-def]
    """A search that finds the article of a name, save for some, and nothing else."""
    found = {
        name: part.passages[entity.name]
        for part in clusters(spec)
        for entity in part.entities.values()
        for name in entity.answers
        if name not in unknown
    }

    def search(queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        assert k == 3
        hits = [found.get(query) for query in queries]
        return [(Hit(hit.id, hit.title, hit.text, 0, 1.0),) if hit else () for hit in hits]

    return search


@pytest.fixture(scope="module")
def rows() -> tuple[Question, ...]:
    return tuple(questions(SPEC, by_name(SPEC)))


@pytest.fixture(scope="module")
def world() -> World:
    return World(clusters(SPEC))


@pytest.fixture(scope="module")
def corpus() -> dict[str, Passage]:
    return {passage.id: passage for passage in articles(SPEC)}


# --- One answer, derivable ---------------------------------------------------------------------------------


def test_every_reading_of_a_question_gives_its_answer_and_no_other(rows, world: World) -> None:  # type: ignore[no-untyped-def]
    assert len(rows) == SPEC.questions
    for row in rows:
        assert world.answers(row.text) == {row.answers}, row.text


def test_the_reading_can_tell_a_wrong_answer(rows, world: World) -> None:  # type: ignore[no-untyped-def]
    """The check above is able to fail: with a fact doubled, questions on it have two answers."""
    row = next(row for row in rows if row.kind == "bridge" and row.hops == 1 and "born" in row.text)
    name = row.evidence[0].title
    before = dict(world.facts[name])
    other = next(entity for entity in world.entities.values() if entity.kind == "town")
    try:
        for relation in ("birthplace", "born"):
            world.facts[name][relation] = (*before[relation], other)
        assert len(world.answers(row.text)) == 2
    finally:
        world.facts[name].update(before)


def test_each_sentence_of_the_evidence_stands_in_its_article_and_leads_on(rows, corpus) -> None:  # type: ignore[no-untyped-def]
    for row in rows:
        assert 1 <= row.hops == len(row.evidence) == len({each.passage_id for each in row.evidence}) <= 4
        for evidence in row.evidence:
            passage = corpus[evidence.passage_id]
            assert passage.title == evidence.title
            assert passage.id == passage_id(passage.title, passage.text)
            assert evidence.sentences
            assert set(evidence.sentences) <= set(sentences(passage.text))


def test_a_bridge_is_walked_by_its_evidence_alone(rows) -> None:  # type: ignore[no-untyped-def]
    for row in rows:
        if row.kind == "bridge":
            first, *rest = row.evidence
            told = [" ".join(each.sentences) for each in row.evidence]
            (name,) = {name for name in (first.title, *aliases(SPEC)[first.title]) if name in row.text}
            assert name == first.title or name in told[0]
            assert all(after.title in before for before, after in zip(told, rest, strict=False))
            assert row.answers[0] in told[-1]
            assert not any(each.title in row.text for each in rest)


def test_a_comparison_has_both_values_in_its_evidence(rows, world: World) -> None:  # type: ignore[no-untyped-def]
    for row in rows:
        if row.kind == "comparison":
            assert row.hops in (2, 4)
            for evidence in row.evidence:
                values = chain.from_iterable(world.facts[evidence.title].values())
                assert any(value.text in " ".join(evidence.sentences) for value in values)


def test_an_intersection_names_its_answer_among_several(rows, world: World) -> None:  # type: ignore[no-untyped-def]
    for row in rows:
        if row.kind == "intersection":
            group, answer, *_ = row.evidence
            assert answer.title == row.answers[0]
            assert answer.title in " ".join(group.sentences)
            assert any(len(values) == 3 for values in world.facts[group.title].values())


def aliases(spec: WorldSpec) -> dict[str, tuple[str, ...]]:
    return {e.name: e.answers[1:] for part in clusters(spec) for e in part.entities.values()}


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=\.) ", text)


def slots(entity: Entity) -> dict[str, str]:
    """What can stand in the fields of a sentence about the subject of an article, as patterns."""
    person = entity.kind == "person"
    pronoun, own = ("she", "her") if entity.female else ("he", "his") if person else ("it", "its")
    names = [entity.text, f"the {entity.noun}", *([entity.name.split()[-1]] if person else [])]
    names += [name[0].upper() + name[1:] for name in names]
    subject = "|".join([*map(re.escape, names), pronoun, pronoun.capitalize()])
    owner = "|".join([*(re.escape(name) + "'s?" for name in names), own, own.capitalize()])
    return {
        **dict.fromkeys(("S", "s", "name", "Name"), subject),
        **dict.fromkeys((f"{relation}_noun" for relation in RELATIONS), "|".join(ROLES)),
        "His": owner,
        "partner": "wife|husband",
    }


def sentence_pattern(form: str, entity: Entity) -> re.Pattern[str]:
    nameless = re.sub(r"\(\?P<\w+>", "(?:", pattern(form, **slots(entity)).pattern)
    return re.compile(nameless.replace("a\\ ", "an?\\ "))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_fact_is_told_in_one_sentence_and_no_other_could_be_read_as_it(number: int) -> None:
    part = cluster(SPEC.seed, number)
    for entity in part.entities.values():
        stated = sentences(part.passages[entity.name].text)
        for group, forms in grammar.FACTS[entity.kind].items():
            if not group or not all(relation in part.facts[entity.name] for relation in group):
                continue
            (told,) = {part.sentences[entity.name, relation] for relation in group}
            if not (entity.alias and stated[0] == told):  # with an alias, the first sentence has its own form
                patterns = [sentence_pattern(form, entity) for form in forms]
                read = {each for each in stated if any(form.fullmatch(each) for form in patterns)}
                assert read == {told}, entity.name


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_aside_never_names_a_value_of_the_facts(number: int) -> None:
    part = cluster(SPEC.seed, number)
    for entity in part.entities.values():
        told = {part.sentences[entity.name, relation] for relation in part.facts[entity.name]}
        asides = [each for each in sentences(part.passages[entity.name].text)[1:] if each not in told]
        for value in chain.from_iterable(part.facts[entity.name].values()):
            if isinstance(value, Entity):
                assert not any(re.search(rf"\b{value.name}\b", aside) for aside in asides)


def test_articles_have_several_sentences_with_asides_and_look_alikes() -> None:
    parts = clusters(SPEC)
    lengths = [len(sentences(passage.text)) for part in parts for passage in part.passages.values()]
    assert min(lengths) >= 4
    assert 6 <= sum(lengths) / len(lengths) <= 9
    for part in parts:
        twins = [(entity, part.entities[entity.twin]) for entity in part.entities.values() if entity.twin]
        assert Counter(entity.kind for entity, _ in twins) == {"person": 4, "town": 2, "publisher": 2}
        for one, two in twins:
            assert two.twin == one.name
            assert one.name in part.passages[two.name].text
            assert part.facts[one.name] != part.facts[two.name]
        assert any(entity.alias for entity in part.entities.values())


# --- Found by its names ------------------------------------------------------------------------------------


def test_every_hop_is_found_by_name_with_an_independent_bm25() -> None:
    from rank_bm25 import BM25Okapi

    spec = WorldSpec(articles=200, questions=300)
    rows, passages = list(questions(spec, by_name(spec))), list(articles(spec))
    tokens = [re.findall(r"\w+", f"{passage.title} {passage.text}".lower()) for passage in passages]
    ranker = BM25Okapi(tokens)

    def found(query: str, id: str) -> bool:
        scores = ranker.get_scores(re.findall(r"\w+", query.lower()))
        best = sorted(range(len(passages)), key=lambda row: (-scores[row], row))[:3]
        return id in {passages[row].id for row in best}

    hops = {(each.title, each.passage_id) for row in rows for each in row.evidence}
    assert all(found(title, id) for title, id in hops)
    several = [row for row in rows if row.hops > 2]
    at_once = [all(found(row.text, each.passage_id) for each in row.evidence) for row in several]
    assert sum(at_once) < len(several) / 10  # one search with the whole question does not do


def test_no_question_relies_on_a_name_that_is_not_found(rows) -> None:  # type: ignore[no-untyped-def]
    used = Counter(each.title for row in rows for each in row.evidence)
    lost = frozenset(name for name, _ in used.most_common(100))
    fewer = list(questions(SPEC, by_name(SPEC, lost)))
    assert fewer
    assert not lost & {each.title for row in fewer for each in row.evidence}


def test_with_a_search_that_finds_nothing_there_are_no_questions() -> None:
    spec = WorldSpec(articles=100, questions=100)
    assert list(questions(spec, lambda queries, k: [() for _ in queries])) == []


# --- Kinds, levels, splits ---------------------------------------------------------------------------------


def test_kinds_hops_and_levels_are_mixed(rows) -> None:  # type: ignore[no-untyped-def]
    kinds = Counter((row.kind, row.hops) for row in rows)
    expected = {
        *(("bridge", hops) for hops in (1, 2, 3, 4)),
        *(("intersection", hops) for hops in (2, 3, 4)),
        *(("comparison", hops) for hops in (2, 4)),
    }
    assert kinds.keys() == expected
    assert min(kinds.values()) >= SPEC.questions // 50
    levels = {level: [row for row in rows if row.level == level] for level in ("easy", "medium", "hard")}
    assert sum(map(len, levels.values())) == len(rows)
    means = [sum(row.hops for row in held) / len(held) for held in levels.values()]
    assert means == sorted(means)
    answers = Counter(row.answers for row in rows)
    assert 0.5 < answers["yes",] / answers["no",] < 2


def test_questions_are_different_and_their_ids_unique(rows) -> None:  # type: ignore[no-untyped-def]
    assert len({row.id for row in rows}) == len({row.text for row in rows}) == len(rows)
    assert len(QuestionSet(rows)) == len(rows)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000))
def test_splits_share_no_entity_no_article_and_no_name(seed: int) -> None:
    spec = WorldSpec(articles=250, questions=250, seed=seed)
    names: dict[str, set[str]] = {"train": set(), "dev": set(), "test": set()}
    ids: dict[str, set[str]] = {split: set() for split in names}
    for part in clusters(spec):
        text = " ".join(f"{passage.title} {passage.text}" for passage in part.passages.values())
        names[part.split] |= {word for word in re.findall(r"\w+", text) if invented(word)}
        ids[part.split] |= {passage.id for passage in part.passages.values()}
    for row in questions(spec, by_name(spec)):
        assert {each.passage_id for each in row.evidence} <= ids[row.split]
        assert {word for word in re.findall(r"\w+", row.text) if invented(word)} <= names[row.split]
    for held in (names, ids):
        assert all(held.values())
        assert len(set().union(*held.values())) == sum(map(len, held.values()))


ENGLISH = {"She", "Her"} | set(re.findall(r"\w+", (Path(grammar.__file__).read_text())))
ENGLISH |= set(re.findall(r"\w+", Path(sys.modules[Entity.__module__].__file__ or "").read_text()))
ENGLISH |= set(re.findall(r"\w+", (Path(grammar.__file__).with_name("phrases.py")).read_text()))


def invented(word: str) -> bool:
    """Whether a word is none of the grammar's and no number."""
    return (
        word[0].isupper()
        and word not in ("She", "Her")
        and word not in ENGLISH
        and word.lower() not in ENGLISH
    )


def test_shares_of_the_splits() -> None:
    spec = WorldSpec(articles=2_000, questions=2_000)
    splits = Counter(row.split for row in questions(spec, by_name(spec)))
    assert splits == {"train": 1_400, "dev": 300, "test": 300}
    assert {part.split for part in clusters(WorldSpec(articles=150, questions=1))} == {"train", "dev", "test"}


# --- Names -------------------------------------------------------------------------------------------------


NUMBER = st.integers(0, WORDS - 1)
ENDING = st.sampled_from(("", "n", "k", "sen", "mar", "vik", "land", "ndt"))


@given(st.integers(0, 5), NUMBER, NUMBER, ENDING, ENDING)
def test_words_stay_different_whatever_is_put_behind(seed: int, one: int, two: int, a: str, b: str) -> None:
    if one != two:
        assert stem(seed, one) + a != stem(seed, two) + b


def syllables(word: str) -> int:
    return len(re.findall("[aeiou]+", word))


def test_many_words_of_both_lengths_are_different_and_are_no_english() -> None:
    from mempo_env.retrieval.analysis import STOP_WORDS

    first_of_four = next(number for number in range(0, WORDS, 1_000) if syllables(stem(0, number)) == 4)
    numbers = [*range(30_000), *range(first_of_four, first_of_four + 30_000)]
    made = {stem(0, number) for number in numbers}
    assert len(made) == len(numbers)
    assert min(map(len, made)) >= 6
    assert not made & {*STOP_WORDS, *ENGLISH}
    assert {stem(1, number) for number in range(1_000)} != {stem(0, number) for number in range(1_000)}
    with pytest.raises(ValueError, match="number of a word"):
        stem(0, WORDS)
    with pytest.raises(ValueError, match="number of a word"):
        stem(0, -1)


def test_clusters_never_share_a_word() -> None:
    assert CLUSTERS * BLOCK <= WORDS
    held = [name for part in clusters(WorldSpec(articles=5_000, questions=1)) for name in part.entities]
    assert len(set(held)) == len(held) == 5_000


# --- The same everywhere -----------------------------------------------------------------------------------

GOLDEN = "d8733292809746db"


def world_digest() -> str:
    spec = WorldSpec(articles=200, questions=300, seed=5)
    rows = [*articles(spec), *questions(spec, by_name(spec))]
    return digest(*(msgspec.json.encode(row) for row in rows))


def test_the_world_does_not_change_unnoticed() -> None:
    """If this fails, a specification gives another world, and no figure is comparable with those of before:
    say so in the changelog and put the new digest here.
    """
    assert world_digest() == GOLDEN


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_another_process_makes_the_same_world(hash_seed: str) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_world; print(test_world.world_digest())"
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == world_digest()


def test_a_larger_world_goes_on_where_the_smaller_ends() -> None:
    small, large = WorldSpec(articles=200, questions=100), WorldSpec(articles=400, questions=600)
    assert list(articles(large))[:200] == list(articles(small))
    few = {row.id: row for row in questions(small, by_name(small))}
    many = {row.id: row for row in questions(large, by_name(large))}
    assert few.items() <= many.items()
    assert len(list(articles(WorldSpec(articles=201, questions=1)))) == 5 * SIZE


def test_other_seeds_are_other_worlds() -> None:
    one, two = (next(articles(WorldSpec(seed=seed))) for seed in (0, 1))
    assert one.title != two.title


def test_a_stream_keeps_a_bounded_number_of_clusters() -> None:
    cluster.cache_clear()
    for _ in articles(WorldSpec(articles=100 * SIZE, questions=1)):
        pass
    assert 0 < sum(isinstance(held, Cluster) for held in gc.get_objects()) <= 65


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ({"articles": 0}, "articles: wanted 1 to"),
        ({"articles": CLUSTERS * SIZE + 1}, "articles: wanted 1 to"),
        ({"questions": 0}, "questions: wanted 1 or more"),
        ({"seed": -1}, "seed: wanted 0 or more"),
    ],
)
def test_a_world_that_cannot_be_is_refused(numbers: dict[str, int], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        WorldSpec(**numbers)
