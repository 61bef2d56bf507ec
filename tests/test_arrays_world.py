"""The toy world: what its words and its integers say is the same, and every question has one answer."""

from __future__ import annotations

import copy
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from arrays_play import facts_in
from mempo_env.arrays.facts import LINKS, VALUES, Facts, ToySpec, make_facts
from mempo_env.arrays.world import FACT_WORDS, World, make_world
from mempo_env.types import passage_id

SPECS = st.builds(
    ToySpec,
    questions=st.integers(10, 60),
    facts=st.integers(1, 19),
    hops=st.integers(1, 4),
    seed=st.integers(0, 50),
)


def path_of(world: World, row: int) -> list[tuple[str, str, str]]:
    """Follow a question through the articles by its words alone; every step must be the only one."""
    question = world.questions[row]
    articles = {passage.title: passage.text for passage in world.corpus}
    asked, _, name = question.text.removeprefix("What is the ").rstrip("?").rpartition(" of ")
    found = []
    for relation in reversed(asked.split(" of the ")):
        (fact,) = (f for f in facts_in(articles[name]) if f[:2] == (name, relation))
        found.append(fact)
        name = fact[2]
    return found


@settings(max_examples=25, deadline=None)
@given(SPECS)
def test_every_question_leads_to_its_answer_by_one_way(spec: ToySpec) -> None:
    world = make_world(spec)
    passages = {passage.title: passage for passage in world.corpus}
    for row, question in enumerate(world.questions):
        found = path_of(world, row)
        assert question.answers == (found[-1][2],) and question.hops == spec.hops == len(found)
        assert [e.title for e in question.evidence] == [fact[0] for fact in found]
        for fact, evidence in zip(found, question.evidence, strict=True):
            assert evidence.passage_id == passages[fact[0]].id == passage_id(fact[0], passages[fact[0]].text)
            assert facts_in(evidence.sentences[0]) == [fact]
            assert evidence.sentences[0] in passages[fact[0]].text


@settings(max_examples=25, deadline=None)
@given(SPECS)
def test_the_integers_say_what_the_words_say(spec: ToySpec) -> None:
    world = make_world(spec)
    relations = (*VALUES, *LINKS)
    for article, row in enumerate(world.article_AF.tolist()):
        passage = world.corpus[article]
        told = [
            (
                world.words[world.subject_M[f]],
                relations[world.relation_M[f]],
                world.words[world.object_M[f]],
            )
            for f in row
        ]
        assert facts_in(passage.text) == told
        assert passage.text == " ".join(world.sentences[f] for f in row)
        assert world.article_of_W[world.word_of[passage.title]] == article
        question = world.questions[int(world.question_of_A[article])]
        assert passage.title in [evidence.title for evidence in question.evidence]
    for row, question in enumerate(world.questions):
        assert [world.sentences[f] for f in world.gold_Qh[row]] == [e.sentences[0] for e in question.evidence]
        assert world.words[world.answer_Q[row]] == question.answers[0]
        assert world.words[world.subject_Q[row]] == question.evidence[0].title
    assert world.row_of == {question.text: row for row, question in enumerate(world.questions)}
    assert all(len(sentence.split()) == FACT_WORDS for sentence in world.sentences)
    for ids in (world.subject_M, world.relation_M, world.object_M):
        assert len(ids) == world.n_facts + 1 == len(world.sentences) + 1 and ids[-1] == -1


@settings(max_examples=25, deadline=None)
@given(SPECS)
def test_distractors_are_of_two_kinds_and_numbers_are_unique(spec: ToySpec) -> None:
    world = make_world(spec)
    titles = {passage.title for passage in world.corpus}
    facts = [facts_in(passage.text) for passage in world.corpus]
    gold = {sentence for question in world.questions for e in question.evidence for sentence in e.sentences}
    for passage, told in zip(world.corpus, facts, strict=True):
        (needed,) = (f for f in told if f"{f[0]}'s {f[1]} is {f[2]}." in gold)
        own = [f for f in told if f[0] == passage.title and f != needed]
        others = [f for f in told if f[0] != passage.title]
        assert (len(own), len(others)) == (spec.facts // 2, (spec.facts - 1) // 2)
        assert len({f[1] for f in [needed, *own]}) == 1 + len(own)  # one object a relation
        assert all(f[1] == needed[1] and f[0] not in titles for f in others)
        assert needed[0] == passage.title and all(f[2] != passage.title for f in told)
    objects = [f[2] for told in facts for f in told]
    numbers = [o for o in objects if o.isdigit()]
    assert len(set(numbers)) == len(numbers) and all(len(number) == 5 for number in numbers)
    assert all(o in titles for o in objects if not o.isdigit())
    assert all((o.isdigit()) == (f[1] in VALUES) for told in facts for f in told for o in [f[2]])
    assert len(set(world.words)) == len(world.words)
    assert max(Counter(f[0] for told in facts for f in told if f[0] not in titles).values(), default=1) == 1


@settings(max_examples=25, deadline=None)
@given(SPECS)
def test_splits_share_no_name_and_are_60_20_20(spec: ToySpec) -> None:
    world = make_world(spec)
    names: dict[str, set[str]] = {"train": set(), "dev": set(), "test": set()}
    for question in world.questions:
        for evidence in question.evidence:
            text = next(p.text for p in world.corpus if p.id == evidence.passage_id)
            names[question.split] |= {w for f in facts_in(text) for w in f if w[0].isupper()}
    assert not names["train"] & names["dev"] and not names["dev"] & names["test"]
    assert not names["train"] & names["test"]
    sizes = Counter(question.split for question in world.questions)
    assert sizes["train"] == spec.questions * 6 // 10
    assert sizes["train"] + sizes["dev"] == spec.questions * 8 // 10
    for split in sizes:
        assert [world.questions[row] for row in world.rows(split)] == list(world.questions.split(split))


def test_every_relation_is_asked_and_every_place_can_hold_the_gold_fact() -> None:
    world = make_world(ToySpec(hops=2))
    assert set(world.relations_Qh[:, -1]) == set(range(6)) and set(world.relations_Qh[:, 0]) == set(
        range(6, 10)
    )
    places = Counter((world.gold_Qh % 5).ravel().tolist())
    assert all(300 < places[place] < 500 for place in range(5))  # 2,000 articles: 400 +- 18 each


def test_equal_specs_make_equal_worlds_and_others_do_not() -> None:
    one, two, other = make_facts(ToySpec(50)), make_facts(ToySpec(50)), make_facts(ToySpec(50, seed=1))
    for name, value in asdict(one).items():
        assert np.array_equal(value, getattr(two, name)) if isinstance(value, np.ndarray) else True
    assert not np.array_equal(one.relation_M, other.relation_M)
    a, b = make_world(ToySpec(50)), make_world(ToySpec(50, seed=1))
    assert a.questions.fingerprint != b.questions.fingerprint and a.corpus.fingerprint != b.corpus.fingerprint
    assert not {q.id for q in a.questions} & {q.id for q in b.questions}


def test_a_world_copies_to_itself_and_pickles_by_its_spec() -> None:
    world = make_world(ToySpec(20))
    assert copy.copy(world) is copy.deepcopy(world) is pickle.loads(pickle.dumps(world)) is world
    assert len(pickle.dumps(world)) < 300 and isinstance(world, Facts)


def test_the_retriever_knows_exact_titles() -> None:
    world = make_world(ToySpec(20))
    title = world.corpus[3].title
    found, padded, lower, unknown, none = world.retriever.search(
        [title, f" {title}\n", title.lower(), world.words[world.names - 1], ""], 1
    )
    assert [(hit.title, hit.row, hit.text) for hit in found] == [(title, 3, world.corpus[3].text)]
    assert padded == found and lower == unknown == none == ()
    assert world.retriever.search([title], 0) == [()]
    other = make_world(ToySpec(20, seed=1)).retriever
    assert other.fingerprint != world.retriever.fingerprint
    assert (
        pickle.loads(pickle.dumps(other)).fingerprint == copy.deepcopy(other).fingerprint == other.fingerprint
    )


@pytest.mark.parametrize("spec", [ToySpec(10, 1), ToySpec(6000, 5, 3), ToySpec(10, 19, 4)])
def test_the_smallest_and_the_largest_worlds_can_be_made(spec: ToySpec) -> None:
    assert len(make_facts(spec).answer_Q) == spec.questions
