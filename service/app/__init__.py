"""The composition root: the only package that knows everyone.

A module for each process, so that none loads what only others need.
"""
