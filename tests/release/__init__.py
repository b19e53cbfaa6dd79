"""Packages and releases: `python -m tests.release dist|prepare VERSION` (docs/guides/releasing.md).

Nothing here publishes, tags, or changes the work tree.
"""
