"""The clients of all languages: one conformance suite, and what it does not reach.

clients/conformance/README.md describes the scripts and the drivers.
"""
