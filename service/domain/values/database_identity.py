"""Database identity: which database this is, so that a copy of it is noticed."""

from typing import NamedTuple


class DatabaseIdentity(NamedTuple):
    """Identifies a database. A copy differs in one of these, but for a copy of all files."""

    #: PostgreSQL's own name of its data folder; empty where our role may not ask for it.
    server: str
    #: The database's number in that server, from 1.
    database: int
    #: How often the data folder was promoted, from 1; 0 in a standby.
    timeline: int

    def differences(self, found: "DatabaseIdentity") -> list[str]:
        """Returns how another identity differs, in words, as far as both are known."""
        if self.server and found.server and self.server != found.server:
            return [f"on server {found.server}, and was on {self.server}"]
        told = []
        if self.database != found.database:
            told.append(f"database {found.database} of its server, and was {self.database}")
        if self.timeline and found.timeline and self.timeline != found.timeline:
            told.append(f"on timeline {found.timeline}, and was on {self.timeline}")
        return told
