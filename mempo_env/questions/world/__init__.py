"""The synthetic Wikipedia: invented people, places, works and firms, and questions about them.

Names come from numbers (`names`), facts from chance within a cluster of fifty things (`facts`), articles from
facts (`grammar`, `cluster`), questions from facts (`phrases`, `ask`), and `build` puts clusters together.
"""

from mempo_env.questions.world.build import WorldSpec, articles, prepare_world, questions, synthetic

__all__ = ["WorldSpec", "articles", "prepare_world", "questions", "synthetic"]
