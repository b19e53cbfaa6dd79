"""Processes that are killed on purpose, by a schedule that a seed makes."""
