"""Evaluation: how well a strategy answers the questions of a dataset, and what that costs."""
