"""A language model of less than a million parameters, with the token path of a large one."""

from mempo_trainers.policies.tiny_lm.model import Shape
from mempo_trainers.policies.tiny_lm.policy import TinyLM
from mempo_trainers.policies.tiny_lm.tokenizer import Tokenizer, learn, lines

__all__ = ["Shape", "TinyLM", "Tokenizer", "learn", "lines"]
