"""Benchmarks that compare agents."""
