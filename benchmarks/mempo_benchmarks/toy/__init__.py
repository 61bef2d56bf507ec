"""Experiments on the toy task: which credit learns, from how many rollouts, and when.

python -m mempo_benchmarks.toy claim --out runs/claim
python -m mempo_benchmarks.toy map --out runs/map
"""
