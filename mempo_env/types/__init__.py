"""The frozen data that travels between the boxes, with JSON in and out.

    Question --env.reset--> Segments --agent--> Completion --parse--> Action --> Observation ... --> Episode

All of them are immutable msgspec structs (docs/decisions/0001): they compare by value, are cheap to make, and
`msgspec.json` writes them and reads them back with every type checked. Plain frozen data forms no cycles,
so the garbage collector does not follow them (gc=False): with many episodes it would have much to walk.

What a round is made of is in `rounds`, what came of it in `episodes`; all of it is imported from here.
"""

from mempo_env.types.episodes import (
    NO_FAULT,
    BankRecord,
    Diagnostics,
    Entry,
    EntryState,
    Episode,
    Failure,
    ObjectiveScore,
    RewardBreakdown,
    RewardTerms,
    Round,
    Score,
    StopReason,
    Tokens,
)
from mempo_env.types.rounds import (
    OWN_KINDS,
    Action,
    Answer,
    Call,
    Completion,
    Evidence,
    FinishReason,
    Hit,
    Invalid,
    Operation,
    OperationKind,
    Passage,
    Question,
    Role,
    Search,
    Segment,
    SegmentKind,
    Span,
    Split,
    passage_id,
    storable,
)

__all__ = [
    "NO_FAULT",
    "OWN_KINDS",
    "Action",
    "Answer",
    "BankRecord",
    "Call",
    "Completion",
    "Diagnostics",
    "Entry",
    "EntryState",
    "Episode",
    "Evidence",
    "Failure",
    "FinishReason",
    "Hit",
    "Invalid",
    "ObjectiveScore",
    "Operation",
    "OperationKind",
    "Passage",
    "Question",
    "RewardBreakdown",
    "RewardTerms",
    "Role",
    "Round",
    "Score",
    "Search",
    "Segment",
    "SegmentKind",
    "Span",
    "Split",
    "StopReason",
    "Tokens",
    "passage_id",
    "storable",
]
