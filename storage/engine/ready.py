"""Statements of SQLAlchemy's Core that are compiled once, for hot paths.

Building a statement each time, looking up what it was compiled to, and running it through an
engine take several times as long as sending it and reading its rows.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any

from psycopg.types.json import Jsonb
from sqlalchemy import ClauseElement
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

_DIALECT: Any = PGDialect_psycopg()  # type: ignore[no-untyped-call]


class Ready:
    """A statement for the driver; its parameters are named by `bindparam`."""

    __slots__ = ("_fixed", "_json", "text")

    def __init__(self, statement: ClauseElement) -> None:
        compiled: Any = statement.compile(dialect=_DIALECT)
        #: With %(name)s for each parameter.
        self.text = str(compiled)
        self._fixed: dict[str, Any] = dict(compiled.params)
        self._json = frozenset(
            compiled.bind_names[bind]
            for bind in compiled.bind_names
            if isinstance(bind.type, JSONB)
        )

    def within(self, text: str) -> "Ready":
        """Returns a larger statement, with this one at the `{}` of `text`.

        The rest of `text` has its parameters as this has, and none that is JSON.
        """
        larger = copy(self)
        larger.text = text.replace("{}", self.text, 1)
        return larger

    def values(self, given: Mapping[str, object]) -> dict[str, object]:
        """Returns all of its parameters: the given ones, and the constants."""
        values = {**self._fixed, **given}
        for name in self._json:
            value = values[name]
            # As in SQLAlchemy: None is NULL, not JSON.
            values[name] = None if value is None else Jsonb(value)
        return values
