"""The database's clock."""

from typing import Any

from sqlalchemy import ColumnElement, func, select

#: The database's clock, in seconds since 1970.
NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"

#: Its time as the column of a relation, for a CASE of an UPDATE: Citus takes no `now()` there.
#: PostgreSQL plans both alike. For statements that are `Ready`: of others SQLAlchemy warns that
#: nothing joins it.
CLOCK = select(func.now().label("at")).subquery("clock")


def interval(seconds: float) -> ColumnElement[Any]:
    """Returns SQL for a number of seconds, to be added to a time."""
    return func.make_interval(0, 0, 0, 0, 0, 0, seconds)
