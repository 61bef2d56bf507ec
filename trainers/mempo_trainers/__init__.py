"""Trainers for policies of every size."""
