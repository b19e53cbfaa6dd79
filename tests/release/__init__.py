"""`python -m tests.release dist|prepare VERSION` packages and releases (docs/guides/running.md).

Nothing here publishes, tags, or changes the work tree.
"""
