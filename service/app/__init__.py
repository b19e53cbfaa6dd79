"""The composition root: the only package that imports all others.

A module for each process, so that none loads what only others need.
"""
