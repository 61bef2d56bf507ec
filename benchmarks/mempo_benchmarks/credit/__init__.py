"""What estimators of credit say of a run, side by side and against the true advantages."""
