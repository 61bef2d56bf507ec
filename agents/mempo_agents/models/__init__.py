"""Models behind agents: from messages to text, many at a time."""
