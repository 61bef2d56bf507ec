"""Policies behind one protocol: pointer and table on arrays, a small language model on text."""
