"""Verifying: everything that can be recomputed of what is stored, against what is stored.

Rows in, differences out. Each check is told its rows in their order, holds what the next one
is compared with, and nothing else: how much is stored does not matter.
"""
