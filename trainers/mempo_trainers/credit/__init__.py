"""Advantages: one pure function for each estimator, arrays in and arrays out; no torch.

    credit = make("mempo", baseline="previous")(trajectories)
    credit.advantages_BK, credit.degenerate_outcome

docs/credit.md has the table of estimators.
"""

from mempo_trainers.credit.data import Trajectories
from mempo_trainers.credit.result import Credit
from mempo_trainers.credit.sampling import fill, keep_groups
from mempo_trainers.credit.table import CREDITS, make

__all__ = ["CREDITS", "Credit", "Trajectories", "fill", "keep_groups", "make"]
