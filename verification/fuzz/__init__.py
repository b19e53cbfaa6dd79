"""Fuzzing: inputs from outside that nobody would write, and what must hold whatever they are.

`python -m verification.fuzz NAME|all --inputs N --seed S`. Each module has the targets of one kind:
a small corpus, mutations of it, and a check. The same seed makes the same inputs.
"""
