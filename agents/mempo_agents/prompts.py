"""What the prompts of several agents have in common."""

TASK = """\
Answer the question, or every one of the questions, with the help of a search engine over an encyclopedia,
in as few words as possible."""

ACT = """\
exactly one of two things:
<search> one query </search>, answered by passages in <information>, or
<answer> the answer </answer>, which ends the episode.
Several questions are answered by numbered lines, one for each, in order."""
