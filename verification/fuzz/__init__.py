"""Fuzzing: hostile and broken inputs from outside, and what must be true for all of them.

`python -m verification.fuzz NAME|all --inputs N --seed S`. Each module has the targets of one kind:
a small corpus, mutations of it, and a check. The same seed makes the same inputs.
"""
