"""Invalid environments, which a process refuses at its start in one clear line."""

import json
import textwrap
from pathlib import Path

import pytest
from pydantic import SecretStr

from service.cli.output import CommandError
from service.cli.run import read_config
from tests.support.guides import section

URL = "postgresql://u:secret-word@db"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DATABASE_URL", "nonsense", "is no URL postgresql://login:password@host:port/database"),
        ("MIGRATION_DATABASE_URL", f"{URL}:port/d", "is no URL postgresql://"),
        ("SIGNALS_DATABASE_URL", "sqlite://secret-word", "is no URL postgresql://"),
        ("REDIS_URL", "secret-word:6379", "is no URL redis://"),
        ("LISTEN", "abc", "is not HOST:PORT"),
        ("MODEL_BASE_URL", "secret-word:8080/v1", "is no URL of an endpoint: give one such as"),
        ("EMBEDDING_BASE_URL", "localhost", "is no URL of an endpoint: give one such as"),
        ("MODEL_BASE_URL", "http://u:secret-word@127.0.0.1:9/v1", "has a login, a query or a"),
        ("MODEL_BASE_URL", "http://u:secret/-word@127.0.0.1:9/v1", "is no URL of an endpoint"),
        ("MODEL_BASE_URL", "http://[::1/v1", "is no URL of an endpoint"),
        ("EMBEDDING_BASE_URL", "https://h/v1?api-key=secret-word", "has a login, a query or a"),
        ("MODEL_API_KEY", "secret-word\nmore", "has a line break or another character that"),
        ("MODEL_API_KEY", "secret-word…", "has a line break or another character that"),
        ("EMBEDDING_API_KEY", " \n", "is blank: give the key, or leave the setting out"),
        ("LISTEN", "127.0.0.1:99999", "is not HOST:PORT"),
        ("LOG_LEVEL", "loud", "Input should be 'debug', 'info', 'warning' or 'error'"),
        ("LOG_FORMAT", "xml", "Input should be 'json' or 'console'"),
        ("LIMIT_MAX_MEMORIES", "0", "Input should be greater than or equal to 1"),
        ("CALL_LEASE_SECONDS", "inf", "Input should be a finite number"),
        ("MODEL_TIMEOUT_SECONDS", "inf", "Input should be a finite number"),
        ("POOL_SIZE", "0", "Input should be greater than or equal to 1"),
    ],
)
def test_a_wrong_value_is_reported_without_the_value(
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


@pytest.mark.parametrize(
    ("url", "query"),
    [
        ("postgresql://u:p@db-1,db-2/d", "?target_session_attrs=read-write"),
        (
            "postgresql://u:p,q@[::1]:5001,db-2:5002/d?sslmode=require",
            "&target_session_attrs=read-write",
        ),
        ("postgresql://u@db-1,db-2/d?target_session_attrs=any", ""),
    ],
)
def test_of_several_hosts_the_one_that_takes_writes_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, url: str, query: str
) -> None:
    monkeypatch.setenv("PALIMPSEST_DATABASE_URL", url)
    assert read_config().database_url == SecretStr(url + query)


def test_other_values_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_LOG_LEVEL", "WARNING")
    monkeypatch.setenv("PALIMPSEST_LISTEN", "[::]:0")
    monkeypatch.setenv("PALIMPSEST_REDIS_URL", "rediss://:key@cache:6380/0")
    config = read_config()
    assert (config.log_level, config.listen) == ("warning", "[::]:0")
    assert config.redis_url == SecretStr("rediss://:key@cache:6380/0")


def test_keys_are_taken_without_the_blanks_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_MODEL_API_KEY", "\nsecret-word\r\n")
    monkeypatch.setenv("PALIMPSEST_EMBEDDING_API_KEY", "")
    monkeypatch.setenv("PLACE_KEY", "secret-word\n")
    places = [{"name": "one", "model": "openai/m", "api_key_env": "PLACE_KEY"}]
    monkeypatch.setenv("PALIMPSEST_DEPLOYMENTS", json.dumps(places))
    config = read_config()
    assert config.model_api_key == SecretStr("secret-word")
    assert config.embedding_api_key is None
    assert config.deployments[0].key() == "secret-word"


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8080/v1",
        "http://[::1]:8080/v1/",
        "https://there",
        "https://there/a/publishers/x@2024/v1",
        "http://gpu_a.local:8000/deep/path",
    ],
)
def test_urls_of_endpoints_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("PALIMPSEST_MODEL_BASE_URL", url)
    monkeypatch.setenv("PALIMPSEST_EMBEDDING_BASE_URL", "")
    config = read_config()
    assert (config.model_base_url, config.embedding_base_url) == (url, None)


PLACE = {"name": "one", "model": "openai/m", "api_base": "https://one.example/v1"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{", "is neither a JSON list of deployments nor a file with one"),
        ('{"name": "one"}', "is neither a JSON list of deployments nor a file with one"),
        ("/no/such/secret-word.json", "the file cannot be read: No such file or directory"),
        ("[1]", "deployment 1: "),
        ('[{"name": "one"}]', "deployment 1.model: Field required"),
        ('[{"name": "a b", "model": "openai/m"}]', "deployment 1.name: "),
        ('[{"name": "a", "model": "m"}]', "deployment 1.model: "),
        (
            '[{"name": "a", "model": "openai/m", "key": "secret-word"}]',
            "deployment 1.key: Extra inputs are not permitted",
        ),
        (
            '[{"name": "a", "model": "openai/m", "api_base": "secret-word"}]',
            "deployment 1.api_base: ",
        ),
        (
            '[{"name": "a", "model": "openai/m", "api_key": {"secret-word": 1}}]',
            "deployment 1.api_key: ",
        ),
        ('[{"name": "a", "model": "openai/m", "tokens_per_second": 0}]', "deployment 1.tokens"),
        ('[{"name": "a", "model": "openai/m", "tokens_per_second": NaN}]', "deployment 1.tokens"),
        (
            '[{"name": "a", "model": "openai/m"}, {"name": "a", "model": "openai/n"}]',
            "names the deployment 'a' twice",
        ),
        (
            '[{"name": "a", "model": "openai/m", "api_key": "secret-word", "api_key_env": "HOME"}]',
            "gives the deployment 'a' both api_key and api_key_env",
        ),
        (
            '[{"name": "a", "model": "openai/m", "api_key_env": "NO_SUCH_KEY"}]',
            "the variable NO_SUCH_KEY for 'a' is not set",
        ),
        ('[{"name": "a", "model": "offline/extractive"}]', "'a': the offline model runs"),
        (f"[{','.join(['1'] * 257)}]", "has 257 deployments; at most 256 are taken"),
    ],
)
def test_wrong_deployments_are_reported_without_a_key(
    monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    monkeypatch.setenv("PALIMPSEST_DEPLOYMENTS", value)
    with pytest.raises(CommandError) as caught:
        read_config()
    assert str(caught.value).startswith(f"PALIMPSEST_DEPLOYMENTS: {said}")
    assert "secret-word" not in str(caught.value)


def test_deployments_are_read_from_the_variable_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PLACE_KEY", "secret-word")
    value = json.dumps(
        [
            PLACE,
            {"name": "two", "model": "openai/m", "api_key_env": "PLACE_KEY", "max_in_flight": 4},
            {**PLACE, "name": "three", "litellm_model": "azure/x", "api_key": "hushed"},
        ]
    )
    file = tmp_path / "deployments.json"
    file.write_text(value)
    for said in (value, str(file)):
        monkeypatch.setenv("PALIMPSEST_DEPLOYMENTS", said)
        config = read_config()
        one, two, three = config.deployments
        assert (one.name, one.target, one.key()) == ("one", "openai/m", None)
        assert (two.key(), two.max_in_flight) == ("secret-word", 4)
        assert (three.key(), three.target) == ("hushed", "azure/x")
        assert "secret-word" not in repr(config)
        assert "hushed" not in repr(config)
    monkeypatch.setenv("PALIMPSEST_DEPLOYMENTS", "")
    assert read_config().deployments == ()


def test_the_guides_deployments_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = section("models", "The prefix cache")
    example = guide.partition("<<'END'\n")[2].partition("END\n")[0]
    monkeypatch.setenv("PALIMPSEST_DEPLOYMENTS", textwrap.dedent(example))
    assert [one.name for one in read_config().deployments] == ["gpu-a", "gpu-b"]
