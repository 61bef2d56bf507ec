"""A causal language model of transformers as a policy: exact ids, exact log-probs, LoRA or all weights."""

from mempo_trainers.policies.huggingface.policy import HuggingFacePolicy, open_policy
from mempo_trainers.policies.huggingface.settings import PolicySettings

__all__ = ["HuggingFacePolicy", "PolicySettings", "open_policy"]
