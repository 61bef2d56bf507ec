"""Speed: the environment beside its peers, and what retrieval costs from size to size."""
