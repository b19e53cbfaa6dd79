"""Measures how well strategies answer the questions of a dataset, and at what cost."""
