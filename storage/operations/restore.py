"""Begins a new history after a restore from a backup.

What was committed after the backup is lost, and its positions are given to other chunks. A token
has the incarnation of its session; a new incarnation makes tokens of the lost history invalid,
instead of letting them be misread.
"""

import psycopg

#: New incarnations are seconds since then (1 January 2025, UTC): the same backup may be restored
#: twice, and incarnations in between must not be used again.
BEGIN_EPOCH_SECONDS = 1_735_689_600

_LOCK_SECONDS = 5

# Row-level security applies to the owner too, who has no policy: so it is off within this
# transaction.
_OPEN = "ALTER TABLE session NO FORCE ROW LEVEL SECURITY"
_CLOSE = "ALTER TABLE session FORCE ROW LEVEL SECURITY"
_RENEW = """
UPDATE session SET incarnation = greatest(
    incarnation + 1, (extract(epoch FROM now()) - %(begin)s)::integer)
"""


def begin_new_history(url: str) -> int:
    """Gives every session a new incarnation, in one transaction; returns how many it changed.

    For the owner of the tables. Raises psycopg.Error.
    """
    with psycopg.connect(url, application_name="palimpsest-restored") as connection:
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
        connection.execute(_OPEN)
        renewed = connection.execute(_RENEW, {"begin": BEGIN_EPOCH_SECONDS}).rowcount
        connection.execute(_CLOSE)
    return renewed
