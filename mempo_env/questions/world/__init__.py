"""The synthetic Wikipedia."""
