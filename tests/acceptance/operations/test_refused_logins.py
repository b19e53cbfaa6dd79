"""A database that refuses the login is reported in its own words, and not waited for."""

from urllib.parse import urlsplit

import psycopg
import pytest

from tests.acceptance.cli.test_cli import assert_one_clear_line, run
from tests.support.harness import Servers, with_database

#: Longer than a command of this test may take: one that waits fails.
PATIENT = {"PALIMPSEST_START_SECONDS": "3600"}


def login(url: str, name: str, password: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{name}:{password}@{parts.hostname}:{parts.port}").geturl()


@pytest.mark.parametrize(
    ("name", "password", "database", "advice"),
    [
        ("refused_login", "right", None, "GRANT palimpsest_app TO the login"),
        ("refused_login", "wrong", None, "check user and password in PALIMPSEST_DATABASE_URL"),
        ("nobody_has_this_name", "x", None, "check user and password"),
        ("palimpsest", None, "no_such_database", "create the database, or name another"),
    ],
)
def test_what_is_wrong_is_reported_at_once(
    name: str, password: str | None, database: str | None, advice: str, servers: Servers
) -> None:
    with psycopg.connect(servers.postgres.superuser_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS refused_login")
        connection.execute("CREATE ROLE refused_login LOGIN PASSWORD 'right'")
    url = with_database(servers.postgres.url, database) if database else servers.new_database()
    if password is not None:
        url = login(url, name, password)
    done = run("serve", PALIMPSEST_DATABASE_URL=url, **PATIENT)
    assert_one_clear_line(done, "the database refuses: ")
    assert_one_clear_line(done, advice)
