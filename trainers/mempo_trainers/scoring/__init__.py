"""Log-probs of answers under a language model of transformers; nothing is generated."""
