"""A database that came back from a backup: its sessions begin another history.

What was committed behind the backup is lost, and the positions that it had are given to other
chunks. A token says which incarnation of a session it belongs to; with another incarnation
those of the lost history are refused instead of misread.
"""

import psycopg

#: Incarnations given here are seconds since then (1 January 2025, UTC): the same backup may be
#: restored twice, and what was handed out in between must not come again.
BEGIN_EPOCH_SECONDS = 1_735_689_600

_LOCK_SECONDS = 5

# The owner is bound by row-level security too, and has no policy: for this transaction, which
# nobody else can see into, he is not.
_OPEN = "ALTER TABLE session NO FORCE ROW LEVEL SECURITY"
_CLOSE = "ALTER TABLE session FORCE ROW LEVEL SECURITY"
_RENEW = """
UPDATE session SET incarnation = greatest(
    incarnation + 1, (extract(epoch FROM now()) - %(begin)s)::integer)
"""


def begin_new_history(url: str) -> int:
    """Gives every session of the database a new incarnation, in one transaction; how many.

    For the owner of the tables. Raises psycopg.Error.
    """
    with psycopg.connect(url, application_name="palimpsest-restored") as connection:
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
        connection.execute(_OPEN)
        renewed = connection.execute(_RENEW, {"begin": BEGIN_EPOCH_SECONDS}).rowcount
        connection.execute(_CLOSE)
    return renewed
