"""Adapters for frameworks, with the frameworks' real code: `make test-clients` runs them.

They run in an environment of their own (requirements/frameworks.lock), which has the client and not
the service; `palimpsest up` runs in the environment of `make setup`.
"""
