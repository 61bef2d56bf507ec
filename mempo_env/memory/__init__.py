"""Memories that an agent can be given."""
