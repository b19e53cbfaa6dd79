"""Verifying: everything that can be recomputed of what is stored, against what is stored.

Rows in, differences out. Each check receives its rows in order and keeps only what the next row
is compared with, so its memory does not grow with the log.
"""
