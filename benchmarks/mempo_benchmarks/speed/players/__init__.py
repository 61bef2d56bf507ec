"""One module a system: it plays the same work, timed in the same way, in the system's own environment."""
