"""Folding in hindsight: the cheapest times to fold a memory at, its log being known."""
