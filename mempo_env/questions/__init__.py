"""Questions and the corpora that answer them."""
