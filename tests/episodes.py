"""Episodes made by hand, for tests of what shows or counts them. People, places and works are invented."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import structs

from mempo_env.types import (
    Action,
    Answer,
    Call,
    Diagnostics,
    Episode,
    Evidence,
    Failure,
    Hit,
    Invalid,
    ObjectiveScore,
    Question,
    RewardBreakdown,
    RewardTerms,
    Round,
    Score,
    Search,
    Segment,
    SegmentKind,
    Span,
    StopReason,
    Tokens,
)
from mempo_env.viewer import Entry

QUESTION = Question(
    id="syn-0017",
    text="In which year was the founder of the Velmora Observatory born?",
    answers=("1871", "the year 1871"),
    split="dev",
    kind="bridge",
    hops=2,
    evidence=(
        Evidence("p-11", "Velmora Observatory", ("It was founded in 1904 by the astronomer Ilse Corvane.",)),
        Evidence(
            "p-12", "Ilse Corvane", (" Corvane was born in 1871 in the harbour town of Ostrava Minor.",)
        ),
    ),
    source="synthetic",
)
HARBOUR = Question(
    id="syn-0018",
    text="Which river runs through the town where Tomas Brell wrote The Salt Ledger?",
    answers=("Anwe", "the Anwe"),
    evidence=(Evidence("p-31", "The Salt Ledger", ()),),
)
PASSAGES = {
    "p-11": (
        "Velmora Observatory",
        "The Velmora Observatory stands on a ridge above the town of Velmora. It was founded in 1904 by the "
        "astronomer Ilse Corvane. Its first telescope, a refractor of 40 cm, is still in use.",
    ),
    "p-12": (
        "Ilse Corvane",
        "Ilse Corvane was an astronomer and instrument maker. Corvane was born in 1871 in the harbour town "
        "of Ostrava Minor. She catalogued 3,200 double stars.",
    ),
    "p-13": (
        "Ilse Corvané (singer)",
        "Ilse Corvané, born in 1949, is a singer from Pell. Her first record sold 80,000 copies.",
    ),
    "p-31": (
        "The Salt Ledger",
        "The Salt Ledger is a novel by Tomas Brell, written in Harrowgate on the Anwe.",
    ),
}
SYSTEM = (
    "You answer a question by searching. In every round write <mem>, <think> and then one <search> or one "
    "<answer>. Only what you write into <mem> is still there later."
)


def hit(id: str, score: float) -> Hit:
    title, text = PASSAGES[id]
    return Hit(id=id, title=title, text=text, row=int(id[2:]), score=score)


def words(text: str) -> int:
    return len(text.split())


def spans(text: str) -> tuple[Span, ...]:
    """Roles by the tag that opens them; the spans cover the text."""
    roles = {"mem": "mem", "think": "think", "search": "call", "answer": "answer"}
    starts = list(re.finditer(r"<(mem|think|search|answer)>", text))
    if not starts:
        return (Span("think", 0, len(text)),) if text else ()
    edges = [0, *(match.start() for match in starts[1:]), len(text)]
    return tuple(
        Span(roles[match[1]], start, end)  # type: ignore[arg-type]
        for match, start, end in zip(starts, edges, edges[1:], strict=False)
    )


def search(
    query: str, memory: str | None = None, thought: str = "Let me look that up."
) -> tuple[str, Action]:
    wrote = "" if memory is None else f"<mem>{memory}</mem>\n"
    text = f"{wrote}<think>{thought}</think>\n<search>{query}</search>"
    flaws = ("no_memory_write",) if memory is None else ()
    return text, Search(query=query, memory=memory, flaws=flaws, spans=spans(text))


def answer(reply: str, memory: str | None = None, flaws: tuple[str, ...] = ()) -> tuple[str, Action]:
    wrote = "" if memory is None else f"<mem>{memory}</mem>\n"
    text = f"{wrote}<think>That is all that is needed.</think>\n<answer>{reply}</answer>"
    return text, Answer(text=reply, memory=memory, flaws=flaws, spans=spans(text))


def invalid(
    text: str, reason: str = "ambiguous", detail: str = "a search and an answer in one round"
) -> tuple[str, Action]:
    return text, Invalid(reason=reason, detail=detail, spans=spans(text))


def play(
    steps: Sequence[tuple[tuple[str, Action], tuple[Hit, ...]]],
    questions: tuple[Question, ...] = (QUESTION,),
    *,
    scores: Sequence[ObjectiveScore] = (),
    failure: Sequence[Failure | None] | None = None,
    stop: StopReason | None = StopReason.ANSWERED,
    calls: tuple[Call, ...] = (),
    mask: bool = False,
) -> Episode:
    """The episode of these texts and hits under the context rule `last_step`."""
    ledger: list[Segment] = []
    rounds: list[Round] = []

    def put(kind: SegmentKind, number: int, text: str) -> int:
        ledger.append(Segment(kind, number, text, words(text)))
        return len(ledger) - 1

    asked = (
        "\n".join(f"{i}. {q.text}" for i, q in enumerate(questions, 1))
        if questions[1:]
        else questions[0].text
    )
    head = (put("system", 0, SYSTEM), put("question", 0, f"<question>\n{asked}\n</question>"))
    gold = {evidence.passage_id for question in questions for evidence in question.evidence}
    kept: tuple[int, ...] = ()
    memory, peak, total, dependency, shown = "", 0, 0, 0.0, set[str]()
    view: tuple[int, ...] = (*head, *kept)
    for number, ((text, action), hits) in enumerate(steps, 1):
        view = (*head, *kept, put("hint", number, f"Rounds left: {16 - number}."))
        prompt, output = sum(ledger[i].tokens for i in view), words(text)
        peak, total = max(peak, prompt + output), total + prompt + output
        dependency += (2 * prompt + output) * output / 2
        if not isinstance(action, Invalid) and action.memory is not None:
            memory = action.memory
        shown |= {hit.id for hit in hits} & gold
        own = [put(span.role, number, text[span.start : span.end]) for span in action.spans]
        if isinstance(action, Invalid):
            own = [put("error", number, f"Invalid action ({action.reason}): {action.detail}.")]
        elif hits:
            told = "\n".join(f"[{i}] {hit.title}\n{hit.text}" for i, hit in enumerate(hits, 1))
            own.append(put("information", number, f"<information>\n{told}\n</information>"))
        kept = tuple(own)
        last = number == len(steps) and isinstance(action, Answer)
        outcome = float(all(score.em for score in scores)) if last and scores else 0.0
        raw = RewardTerms(outcome=outcome, invalid_action=float(isinstance(action, Invalid)))
        weighted = RewardTerms(outcome=outcome, invalid_action=-0.05 * raw.invalid_action)
        rounds.append(
            Round(
                number=number,
                view=view,
                text=text,
                token_ids=tuple(range(output)),
                logprobs=(-0.5,) * output,
                finish_reason="stop",
                calls=calls if number == 1 else (),
                action=action,
                hits=hits,
                memory=memory,
                tokens=Tokens(prompt, output, words(memory), peak, total, dependency),
                diagnostics=Diagnostics(
                    evidence_recall=len(shown) / len(gold) if gold else None,
                    evidence_kept=len(shown) / len(gold) if gold else None,
                    facts_lost=0 if gold else None,
                    answer_in_retrieved=tuple(bool(shown) for _ in questions),
                    answer_in_memory=tuple(any(a in memory for a in q.answers) for q in questions),
                    redundant_query=False,
                ),
                reward=RewardBreakdown(raw=raw, weighted=weighted),
                state_hash=f"{number:016x}",
            )
        )
        view = (*head, *kept)
    blank = ObjectiveScore("", 0.0, 0.0, 0.0, False)
    each = tuple(scores) or (blank,) * len(questions)
    return Episode(
        question_id="+".join(question.id for question in questions),
        questions=questions,
        ledger=tuple(ledger),
        rounds=tuple(rounds),
        final_view=view,
        stop_reason=stop,
        score=Score(
            em=sum(score.em for score in each) / len(each),
            f1=sum(score.f1 for score in each) / len(each),
            em_relaxed=sum(score.em_relaxed for score in each) / len(each),
            em_all=float(all(score.em for score in each)),
            well_formed=bool(scores),
            objectives=each,
        ),
        failure=tuple(failure) if failure is not None else (None,) * len(questions),
        tokens=rounds[-1].tokens if rounds else Tokens(0, 0, 0, 0, 0, 0.0),
        rewards=RewardTerms(
            outcome=sum(round.reward.weighted.outcome for round in rounds),
            invalid_action=sum(round.reward.weighted.invalid_action for round in rounds),
        ),
        mask_episode=mask,
        settings={"context": "last_step", "memory": "inline", "top_k": 3, "max_rounds": 16},
    )


def right() -> Episode:
    """Three rounds, both gold passages found, the memory rewritten, the right answer."""
    return play(
        [
            (search("Velmora Observatory founder"), (hit("p-11", 9.25), hit("p-13", 1.5))),
            (
                search(
                    "Ilse Corvane born",
                    "The Velmora Observatory was founded in 1904 by Ilse Corvane. Needed: her year of birth.",
                ),
                (hit("p-12", 11.0), hit("p-13", 7.75)),
            ),
            (
                answer("1871", "The observatory was founded in 1904 by Ilse Corvane, who was born in 1871."),
                (),
            ),
        ],
        scores=(ObjectiveScore("1871", 1.0, 1.0, 1.0, True),),
    )


def wrong() -> Episode:
    """Five rounds, one of them invalid; the look-alike's year is given."""
    return play(
        [
            (search("founder of an observatory"), (hit("p-13", 2.0),)),
            (invalid("<think>Both?</think><search>Velmora</search><answer>1904</answer>"), ()),
            (search("Velmora Observatory", "Nothing found yet."), (hit("p-11", 9.25),)),
            (search("Corvane", "Founded by Ilse Corvane 🔭 in 1904."), (hit("p-13", 8.0),)),
            (answer("1949", "Founded by Ilse Corvane, born in 1949.", ("trailing",)), ()),
        ],
        scores=(ObjectiveScore("1949", 0.0, 0.0, 0.0, False),),
        failure=(Failure.NOT_RETRIEVED,),
    )


def multi() -> Episode:
    """Two objectives, one of them right."""
    return play(
        [
            (search("The Salt Ledger"), (hit("p-31", 8.5),)),
            (answer("1. 1904\n2. Anwe", "The Salt Ledger was written on the Anwe."), ()),
        ],
        (QUESTION, HARBOUR),
        scores=(
            ObjectiveScore("1904", 0.0, 0.0, 0.0, False),
            ObjectiveScore("Anwe", 1.0, 1.0, 1.0, True),
        ),
        failure=(Failure.KEPT_NOT_USED, None),
    )


def aborted() -> Episode:
    """Ended before its first round."""
    return play([], stop=StopReason.TIMEOUT, failure=(Failure.OUT_OF_BUDGET,))


def unfinished() -> Episode:
    """Two rounds played, and still going."""
    episode = play(
        [(search("Velmora Observatory"), (hit("p-11", 9.25),)), (search("Corvane", "Ilse Corvane."), ())],
        stop=None,
    )
    return structs.replace(episode, failure=())


def without_gold() -> Episode:
    """No evidence is known, the retriever fails, and the first round made two calls of a model."""
    question = Question(id="own/1 %", text="What is in the box", answers=("salt",))
    segments = (Segment("system", 0, "Summarise.", 1), Segment("information", 1, "A long page.", 3))
    episode = play(
        [(search("box"), ())],
        (question,),
        stop=StopReason.RETRIEVER_ERROR,
        failure=(Failure.ENVIRONMENT,),
        calls=(
            Call(segments=segments, output="A summary.", prompt_tokens=4, output_tokens=2),
            Call(segments=segments[:1], output="<search>box</search>", prompt_ids=(5, 6), output_ids=(7,)),
        ),
        mask=True,
    )
    return structs.replace(episode, stop_detail="http://127.0.0.1:9: refused")


def hostile(text: str) -> Episode:
    """Every text that a document, a data set or an agent can bring in is `text`."""
    question = Question(
        id=text,
        text=text,
        answers=(text,),
        kind=text,
        level=text,
        source=text,
        evidence=(Evidence(text, text, (text,)),),
    )
    found = Hit(id=text, title=text, text=text, row=0, score=1.0)
    reply = Answer(text=text, memory=text, flaws=(text,), spans=(Span("answer", 0, len(text)),))
    wrong_reply = Invalid(reason=text, detail=text, spans=(Span("think", 0, len(text)),))
    episode = play(
        [(search(text, text, text), (found,)), ((text, wrong_reply), ()), ((text, reply), ())],
        (question,),
        scores=(ObjectiveScore(text, 0.0, 0.0, 0.0, False),),
        failure=(Failure.WRONG_FORM,),
    )
    return structs.replace(episode, stop_detail=text, settings={text: text})


SEVERAL = [
    Entry("mempo", right()),
    Entry("react", wrong()),
    Entry("mempo", multi()),
    Entry("window", aborted()),
    Entry("own/agent 1 %", without_gold()),
    Entry("mempo", unfinished()),
]
"""One of each kind, by several agents."""

ATTACK = (
    "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 2'>"
    "<svg onload='window.ran = 3'><!-- {{data}} ]]> --> <iframe srcdoc='<b>'></iframe> &lt;i&gt; &amp; "
    "\u2028\u2029 \x00 \x1b[0m \u202eevil \u05d0\u05d1 javascript:alert(1) ${window.ran = 4} __proto__ "
    f"{'W' * 300}"
)
"""What a page must show and never obey; `window.ran` tells whether it did."""
