"""Advantages: one pure function for each estimator, arrays in and arrays out; no torch."""
