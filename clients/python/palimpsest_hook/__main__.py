"""Runs `python -m palimpsest_hook`."""

from palimpsest_hook.command import main

main()
