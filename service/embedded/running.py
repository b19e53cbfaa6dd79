"""Finding the database of an `up` that runs, for commands that look at it from beside."""

from pathlib import Path

from service.embedded.postgres import NAME, url_of

#: Where the port stands in postmaster.pid: see PostgreSQL's miscadmin.h.
_PORT_LINE = 3


def database_url(data_dir: Path) -> str | None:
    """URL of the embedded database below a data folder, for our login role; None when none
    runs there, or its files are not for this user."""
    folder = data_dir.absolute() / "postgres"
    try:
        lines = (folder / "data" / "postmaster.pid").read_text().splitlines()
        password = (folder / "login.password").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    if len(lines) <= _PORT_LINE or not lines[_PORT_LINE].strip().isdecimal():
        return None
    return url_of(NAME, password, lines[_PORT_LINE].strip(), NAME)
