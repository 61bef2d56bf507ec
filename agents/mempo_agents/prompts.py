"""What the prompts of several agents have in common."""

from mempo_env.instructions import FORM

TASK = """\
Answer the question, or every one of the questions, with the help of a search engine over an encyclopedia,
in as few words as possible."""

ACT = f"""\
exactly one of two things:
<search> one query </search>, answered by passages in <information>, or
<answer> the answer </answer>, which ends the episode.
{FORM}"""
"""The environment puts in how several answers are wanted."""
