"""What the driver reports while it connects, as the storage reports it."""

import psycopg
import pytest

from storage.engine.errors import LoginRefused, Unreachable, translate

START = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ('FATAL:  role "palimpsest_app" does not exist', "run `palimpsest migrate`"),
        ('FATAL:  permission denied to set role "palimpsest_app"', "GRANT palimpsest_app"),
        ('FATAL:  password authentication failed for user "p"', "user and password"),
        ('FATAL:  role "p" does not exist', "user and password"),
        ('FATAL:  database "p" does not exist', "create the database"),
    ],
)
def test_a_refused_login_says_what_helps(words: str, advice: str) -> None:
    error = translate(psycopg.OperationalError(START + words))
    assert isinstance(error, LoginRefused)
    assert advice in error.advice


@pytest.mark.parametrize(
    "words",
    ["Connection refused", "FATAL:  the database system is starting up", "timeout expired"],
)
def test_what_passes_is_no_refused_login(words: str) -> None:
    error = translate(psycopg.OperationalError(START + words))
    assert type(error) is Unreachable
