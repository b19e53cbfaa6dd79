"""Adapters for frameworks: each module needs the framework that it is named after.

    from palimpsest.integrations.langgraph import PalimpsestSaver, PalimpsestStore

docs/guides/frameworks.md says how to install and use each.
"""
