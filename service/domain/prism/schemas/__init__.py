"""Schemas: one tree of types, in whatever a schema is written."""
