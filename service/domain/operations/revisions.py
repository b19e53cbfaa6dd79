"""Revisions of the database's schema: four digits, each greater than the one before."""

import re
from collections.abc import Collection


def is_before_version_1(revision: str, known: Collection[str]) -> bool:
    """Returns whether a database at `revision` is older than the first migration of `known`.

    Any other revision that is not known is a newer release's.
    """
    return re.fullmatch(r"[0-9]{4}", revision) is not None and revision < min(known, default="")


def too_old(revision: str) -> str:
    """Returns why such a database is refused, and what to do."""
    return (
        f"this database is of a release before version 1 (revision {revision}), which is not"
        " migrated: begin with an empty database"
    )
