"""URLs of several hosts, as SQLAlchemy's driver hands them to libpq."""

from typing import Any

import pytest
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from storage.engine.connections import sqlalchemy_url


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        (
            "postgresql://u:p%40s@a:5001,b:5002/d?target_session_attrs=read-write",
            {
                "host": "a,b",
                "port": "5001,5002",
                "user": "u",
                "password": "p@s",
                "dbname": "d",
                "target_session_attrs": "read-write",
            },
        ),
        (
            "postgresql://u@[::1]:5001,b/d",
            {"host": "::1,b", "port": "5001,", "user": "u", "dbname": "d"},
        ),
        (
            "postgresql://u:p@a:5001/d",
            {"host": "a", "port": 5001, "user": "u", "password": "p", "dbname": "d"},
        ),
    ],
)
def test_all_hosts_get_there(url: str, parts: dict[str, object]) -> None:
    dialect: Any = PGDialect_psycopg()  # type: ignore[no-untyped-call]
    assert dialect.create_connect_args(sqlalchemy_url(url)) == ([], parts)
