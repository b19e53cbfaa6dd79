"""The environment: what a process refuses to start with, in one clear line."""

import pytest
from pydantic import SecretStr

from service.cli.output import CommandError
from service.cli.run import read_config

URL = "postgresql://u:secret-word@db"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DATABASE_URL", "nonsense", "is no URL postgresql://login:password@host:port/database"),
        ("MIGRATION_DATABASE_URL", f"{URL}:port/d", "is no URL postgresql://"),
        ("DISPATCH_DATABASE_URL", "sqlite://secret-word", "is no URL postgresql://"),
        ("REDIS_URL", "secret-word:6379", "is no URL redis://"),
        ("LISTEN", "abc", "is not HOST:PORT"),
        ("LISTEN", "127.0.0.1:99999", "is not HOST:PORT"),
        ("LOG_LEVEL", "loud", "Input should be 'debug', 'info', 'warning' or 'error'"),
        ("LOG_FORMAT", "xml", "Input should be 'json' or 'console'"),
        ("LIMIT_MAX_MEMORIES", "0", "Input should be greater than or equal to 1"),
        ("POOL_SIZE", "0", "Input should be greater than or equal to 1"),
    ],
)
def test_a_wrong_value_is_told_without_the_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"PALIMPSEST_{name}", value)
    with pytest.raises(CommandError) as caught:
        read_config()
    assert str(caught.value).startswith(f"PALIMPSEST_{name}: {said}")
    assert "secret-word" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"{URL}/d",
        f"{URL}:5432/d?sslmode=require",
        "postgres://u:p@ss/w:rd@db:5432/d",
        "postgresql://u@[::1]:5432/d",
        "postgresql://u@/d?host=/var/run/postgresql&port=5433",
    ],
)
def test_urls_of_databases_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("PALIMPSEST_DATABASE_URL", url)
    assert read_config().database_url == SecretStr(url)


def test_other_values_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_LOG_LEVEL", "WARNING")
    monkeypatch.setenv("PALIMPSEST_LISTEN", "[::]:0")
    monkeypatch.setenv("PALIMPSEST_REDIS_URL", "rediss://:key@cache:6380/0")
    config = read_config()
    assert (config.log_level, config.listen) == ("warning", "[::]:0")
    assert config.redis_url == SecretStr("rediss://:key@cache:6380/0")
