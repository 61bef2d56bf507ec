"""Corpora, search indexes and retrieval servers."""
