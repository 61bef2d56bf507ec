"""Training of language models: what is played, who generates, and the loops of the tiny policies."""
