"""Settings: which place wins, and what is said of each mistake."""

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from service.app import health
from service.cli.commands import app
from service.cli.output import CommandError
from service.cli.run import MAX_PROBLEMS, read_config
from service.local import processes
from service.settings.config import Config
from service.settings.environment import OTHERS, PREFIX, setting_names
from service.settings.files import CONFIG, FILE, MAX_BYTES
from service.settings.reading import fields, read, variable_of

SECRET = "secret-word"
KEY = "PALIMPSEST_MODEL_API_KEY"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of ours; `--config` sets one, which is to go again."""
    for name in [name for name in os.environ if name.startswith("PALIMPSEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(CONFIG, "")
    monkeypatch.delenv(CONFIG)


def written(folder: Path, text: str | bytes, name: str = "palimpsest.toml") -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(0o600)
    return str(path)


def of_file(folder: Path, text: str | bytes) -> Config:
    found = read({CONFIG: written(folder, text)})
    assert found.config is not None, found.problems
    return found.config


def problems(folder: Path, text: str | bytes) -> list[str]:
    path = written(folder, text)
    found = read({CONFIG: path})
    assert found.config is None
    assert not any(SECRET in one for one in found.problems)
    return [one.removeprefix(f"{path}: ") for one in found.problems]


@pytest.mark.parametrize(
    ("name", "default", "values"),
    [
        ("worker_concurrency", 16, (1, 2, 3, 4)),
        ("limits.max_calls", 5000, (10, 20, 30, 40)),
        ("redis_cluster", False, (True, False, True, False)),
        ("log_level", "info", ("debug", "warning", "error", "DEBUG")),
        ("models", ("offline/*", "local/*"), ("a/*", "b/*", "c/*", "d/*")),
    ],
)
def test_the_first_place_that_has_a_value_wins(
    tmp_path: Path, name: str, default: Any, values: tuple[Any, ...]
) -> None:
    # Each place in turn: only the last one, then one before it as well.
    option, in_variable, in_secret, in_toml = values
    head, _, limit = name.partition(".")
    table = f"[{head}]\n{limit}" if limit else head
    toml = written(tmp_path, f"{table} = {json.dumps(in_toml)}\n")
    file = written(tmp_path, f"{in_secret}\n", "secret")
    variable = variable_of(name)

    def found(environment: dict[str, str], **changes: Any) -> Any:
        settings = read(environment, changes)
        assert settings.config is not None, settings.problems
        of = settings.config.limits if limit else settings.config
        return getattr(of, limit or head), settings.places.get(name)

    def as_read(value: Any) -> Any:
        if name == "models":
            return (value,)
        return value.lower() if isinstance(value, str) else value

    environment: dict[str, str] = {}
    assert found(environment) == (default, None)
    environment[CONFIG] = toml
    assert found(environment) == (as_read(in_toml), f"{toml}: {name}")
    assert found({**environment, variable + FILE: file}) == (
        as_read(in_secret),
        f"{variable}_FILE ({file})",
    )
    environment[variable.lower()] = str(in_variable)
    assert found(environment) == (as_read(in_variable), variable.lower())
    changes = {head: {limit: option}} if limit else {name: option}
    place = variable if limit else f"--{name.replace('_', '-')}"
    assert found(environment, **changes) == (as_read(option), place)


def test_a_variable_and_its_file_are_not_set_both(tmp_path: Path) -> None:
    file = written(tmp_path, SECRET)
    found = read({KEY: SECRET, KEY + FILE: file})
    assert found.problems == [f"{KEY} and {KEY}_FILE are both set: set one of them"]
    assert found.config is None


def test_a_variable_is_not_set_in_two_cases() -> None:
    found = read({"PALIMPSEST_LISTEN": "0.0.0.0:50051", "palimpsest_listen": "127.0.0.1:1"})
    assert found.config is None
    assert found.problems == [
        "PALIMPSEST_LISTEN and palimpsest_listen are both set: set one of them"
    ]
    assert read({"PATH": "/a", "Path": "/b"}).problems == []


def test_an_empty_variable_is_as_one_that_is_not_set(tmp_path: Path) -> None:
    toml = written(tmp_path, 'redis_url = "redis://x"\nrun_dir = "/run/mine"')
    optional = [
        variable_of(name)
        for name, one in fields().items()
        if one.get_default(call_default_factory=True) is None
    ]
    assert KEY in optional
    empty = dict.fromkeys([*optional, "PALIMPSEST_DATA_DIR", CONFIG], "")
    found = read(empty)
    assert (found.config, found.places) == (Config(), {})
    found = read({**empty, "PALIMPSEST_RUN_DIR": "", CONFIG: toml})
    wanted = {"redis_url": "redis://x", "run_dir": "/run/mine"}
    assert found.config == Config.model_validate(wanted)
    secret = written(tmp_path, "secret-word", "key")
    found = read({KEY: "", KEY + FILE: secret})
    assert (found.problems, found.places) == ([], {"model_api_key": f"{KEY}_FILE ({secret})"})
    # This one has to have a value.
    assert read({"PALIMPSEST_LISTEN": ""}).config is None


def test_what_is_wrong_with_an_option_names_the_option() -> None:
    found = read({}, {"metrics_listen": "x", "model_base_url": "y"})
    assert [one.partition(": ")[0] for one in found.problems] == ["--metrics-listen", "--base-url"]


def test_the_file_of_the_command_line_wins_over_a_variable_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("palimpsest_config", str(tmp_path / "none"))
    done = checked("--config", written(tmp_path, "stop_seconds = 31"))
    assert (done.exit_code, "31.0" in done.stdout) == (0, True), done.output


def test_no_setting_is_taken_for_the_file_of_another() -> None:
    names = setting_names()
    assert not [one for one in names | OTHERS if one.removesuffix(FILE) in names - {one}]
    assert len({variable_of(name) for name in fields()}) == len(fields())
    assert {variable_of(name).removeprefix("PALIMPSEST_") for name in fields()} == setting_names()


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_final_newline_is_no_part_of_a_value(tmp_path: Path, end: str) -> None:
    name = "PALIMPSEST_EMBEDDING_QUERY_PREFIX"
    found = read({name + FILE: written(tmp_path, f" query:\n {end}")})
    assert found.config is not None
    assert found.config.embedding_query_prefix == " query:\n "


def test_what_takes_a_path_takes_a_file_with_the_path_or_the_value(tmp_path: Path) -> None:
    places = written(tmp_path, '[{"name": "a", "model": "openai/m"}]', "places.json")
    path = written(tmp_path, places + "\n", "path")
    name = "PALIMPSEST_DEPLOYMENTS"
    for environment in ({name: places}, {name + FILE: places}, {name + FILE: path}):
        found = read(environment)
        assert found.config is not None, found.problems
        assert [one.name for one in found.config.deployments] == ["a"]


def unusable(folder: Path) -> list[tuple[str, str]]:
    """Paths, and what is said of them."""
    os.mkfifo(folder / "pipe")
    (folder / "large").write_bytes(b"#" * (MAX_BYTES + 1))
    return [
        (str(folder / "none"), "cannot be read: No such file or directory"),
        (str(folder), "cannot be read: Is a directory"),
        (str(folder / "pipe"), "is no regular file: name one"),
        (str(folder / "large"), "has more than 1,048,576 bytes"),
        (written(folder, b"\xff\xfe", "bytes"), "is not UTF-8 text"),
        (written(folder, b"a = 1\0", "nul"), "has a NUL byte, and is no text"),
    ]


def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    for path, said in unusable(tmp_path):
        assert read({CONFIG: path}).problems == [f"{path}: {said}"]
        assert read({KEY + FILE: path}).problems == [f"{KEY}_FILE ({path}): {said}"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_of_others_is_one_line(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    os.chmod(path, 0)
    assert read({CONFIG: path}).problems == [f"{path}: cannot be read: Permission denied"]


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_secret_is_an_error(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    said = f"{KEY}_FILE ({path}): is empty: write the value into it"
    assert read({KEY + FILE: path}).problems == [said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listen", "is no TOML: Expected '=' after a key in a key/value pair (at end of document)"),
        ('listen = "a\nb"', "is no TOML: Illegal character '\\n' (at line 1, column 12)"),
        (f"model_tries = {'9' * 5000}", "has a number with too many digits"),
        (f"models = {'[' * 100_000}", "has brackets in brackets, too deep to be read"),
        ('lisen = "secret-word"', "lisen is no setting; the nearest is listen"),
        ('PALIMPSEST_LISTEN = "x"', "PALIMPSEST_LISTEN is no setting; the nearest is listen"),
        ('data-dir = "x"', "data-dir is no setting; the nearest is data_dir"),
        ("[limit]\nmax_calls = 1", "limit is no setting; the nearest is limits"),
        (
            "[limits]\nmax_cals = 1",
            "limits.max_cals is no setting; the nearest is limits.max_calls",
        ),
        ("max_calls = 1", "max_calls is no setting; the nearest is limits.max_calls"),
        ("limits = 1", "limits: is no table: write [limits], and the limits below it"),
        ("[[limits]]\nmax_calls = 1", "limits: is no table: write [limits], and the limits"),
        ("pool_size = true", "pool_size: is true, and no setting that is on or off"),
        ('pool_size = "x"', "pool_size: Input should be a valid integer, unable to parse"),
        ("pool_size = 1.5", "pool_size: Input should be a valid integer, got a number with a"),
        ("pool_size = [1]", "pool_size: Input should be a valid integer"),
        ("redis_cluster = 2", "redis_cluster: Input should be a valid boolean"),
        ("log_level = 1", "log_level: Input should be 'debug', 'info', 'warning' or 'error'"),
        (f"{'a' * 90} = 1", f"{'a' * 80}… is no setting; the nearest is "),
        ("listen = 50051", "listen: Input should be a valid string"),
        ("data_dir = 1", "data_dir: Input is not a valid path"),
        ("stop_seconds = inf", "stop_seconds: has a number that is not finite, or is too long"),
        ("model = 2026-11-23", "model: has a date or a time: write it in quotes"),
        ("models = 1", "models: is neither a text nor a list of texts"),
        ("models = [1]", "models: is neither a text nor a list of texts"),
        ('models = ["x"]', "models: 'x' is not PROVIDER/NAME"),
        ("[limits]\nmax_calls = 0", "limits.max_calls: Input should be greater than or equal"),
        ('database_url = "secret-word"', "database_url: is no URL postgresql://login:password@"),
        ('model_api_key = ["secret-word"]', "model_api_key: Input should be a valid string"),
        ("[database_url]\nx = 1", "database_url: Input should be a valid string"),
        ("model_prices = [1]", "model_prices: is no JSON object from models to settings"),
        (
            '[model_prices."a/b"]\nred = 1',
            "model_prices: a/b: red: there is no such setting; there are input_usd_per_million",
        ),
        (
            '[model_settings."a/b".extra]\nx = {y = [1979-05-27]}',
            "model_settings: has a date or a time: write it in quotes",
        ),
        ('[deployments]\nname = "a"', "deployments: is one table: begin each deployment"),
        (
            '[[deployments]]\nname = "a"\nmodel = "openai/m"\napi_key = ["secret-word"]',
            "deployments: deployment 1.api_key: ",
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    (found,) = problems(tmp_path, text)
    assert found.startswith(said)


def test_tables_stand_for_json(tmp_path: Path) -> None:
    text = """
        models = ["offline/*", "openai/gpt-*"]
        data_dir = "/data"
        model_timeout_seconds = 5
        log_level = "WARNING"
        [model_prices."openai/*"]
        read = 0.5
        [model_settings."openai/*"]
        seed = 4
        purposes.answer.temperature = 0.5
        [model_profiles."openai/mine"]
        refuses = ["seed"]
        [[deployments]]
        name = "a"
        model = "openai/m"
        api_key = "secret-word"
        [[deployments]]
        name = "b"
        model = "openai/m"
        max_in_flight = 3
    """
    table = tomllib.loads(text)
    environment = {
        f"PALIMPSEST_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in table.items()
    }
    environment["PALIMPSEST_MODELS"] = ",".join(table["models"])
    assert of_file(tmp_path, text) == read(environment).config


def test_everything_that_is_wrong_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, 'lisen = "x"\npool_size = 0\n[limits]\nmax_calls = "x"\n')
    none = tmp_path / "none"
    environment = {
        CONFIG: path,
        f"{PREFIX}MODLE": "x",
        "PALIMPSEST_LOG_LEVEL": "loud",
        KEY + FILE: str(none),
    }
    assert [one.partition(": ")[0].partition(" is ")[0] for one in read(environment).problems] == [
        f"{PREFIX}MODLE",
        path,
        f"{KEY}_FILE ({none})",
        path,
        "PALIMPSEST_LOG_LEVEL",
        path,
    ]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CommandError, match=r"; and 1 more: see `palimpsest config check`$") as said:
        read_config()
    assert str(said.value).count(path) == 2
    assert MAX_PROBLEMS == 5
    done = checked()
    assert (done.exit_code, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 6
    assert all(line.startswith("error: ") for line in done.stderr.splitlines())


def checked(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["config", "check", *arguments])


TOML = """
database_url = "postgresql://me:p@ss/secret-word@db/d?password=secret-word"
redis_url = "redis://:secret-word@cache:6379/0"
model_api_key = "secret-word"
model_base_url = "https://models.example/v1"
stop_seconds = 30
[limits]
max_calls = 77
[model_settings."openai/*".extra]
some_field = "secret-word"
[[deployments]]
name = "a"
model = "openai/m"
api_key = "secret-word"
"""


def test_check_shows_what_is_given_and_hides_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, TOML)
    key = written(tmp_path, "secret-word", "key")
    monkeypatch.setenv("PALIMPSEST_EMBEDDING_API_KEY_FILE", key)
    monkeypatch.setenv("PALIMPSEST_REFLECTION", "true")
    done = checked("--config", path)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert "secret-word" not in done.output
    settings = '{"openai/*": {"extra": {"some_field": "***"}, "purposes": {}}}'
    place = '[{"name": "a", "model": "openai/m", "api_key": "***"}]'
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        "given value source",
        f"database_url postgresql://me:***@db/d?*** {path}: database_url",
        f"redis_url redis://:***@cache:6379/0 {path}: redis_url",
        "reflection true PALIMPSEST_REFLECTION",
        f"model_base_url https://models.example/v1 {path}: model_base_url",
        f"model_api_key *** {path}: model_api_key",
        f"model_settings {settings} {path}: model_settings",
        f"deployments {place} {path}: deployments",
        f"embedding_api_key *** PALIMPSEST_EMBEDDING_API_KEY_FILE ({key})",
        f"stop_seconds 30.0 {path}: stop_seconds",
        f"limits.max_calls 77 {path}: limits.max_calls",
        f"{len(fields()) - 10} others have their defaults; --all shows them",
    ]
    said = json.loads(checked("--config", path, "--json", "--all").stdout)
    assert "secret-word" not in json.dumps(said)
    rows = {row["name"]: row for row in said["settings"]}
    assert (said["valid"], said["problems"], said["warnings"]) == (True, [], [])
    assert list(rows) == list(fields())
    assert rows["limits.max_calls"]["value"] == 77
    assert rows["record"] == {"name": "record", "value": None, "source": "default"}
    every = [line.split()[0] for line in checked("--config", path, "--all").stdout.splitlines()]
    assert sorted(every) == sorted(["given", "defaults", *fields()])


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://app@db/x?password=p@secret-word", "postgresql://:***@db/x?***"),
        ("postgresql://u:p@a?b@h/x", "postgresql://u:***@h/x"),
        ("postgresql://u:p?a@h/x?Password=secret-word@1", "postgresql://u:***@h/x?***"),
        ("postgresql://u:p@h/x?password=1?password=secret-word@2", "postgresql://u:***@h/x?***"),
        ("postgresql://u:secret-word?password=1@h/x", "postgresql://***"),
        ("postgresql://db:5432/x?sslmode=require", "postgresql://db:5432/x?***"),
    ],
)
def test_check_hides_a_password_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    monkeypatch.setenv("PALIMPSEST_DATABASE_URL", url)
    done = checked("--json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["settings"]
    assert row["value"] == said


def test_check_hides_the_password_of_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_REDIS_URL", "unix:///run/x.sock?password=se@secret-word")
    (row,) = json.loads(checked("--json").stdout)["settings"]
    assert row["value"] == "unix:///run/x.sock?***"


def test_check_refuses_what_serve_and_work_refuse(tmp_path: Path) -> None:
    lines = [
        'listen = "0.0.0.0:1"',
        'database_url = "postgresql://db"',
        'database_pooler = "transaction"',
        'embedding_model = "local/none"',
    ]
    done = checked("--config", written(tmp_path, "\n".join(lines)))
    assert done.exit_code == 1
    said = [" ".join(line.split()[:5]) for line in done.stderr.splitlines()]
    assert said == [
        "error: 0.0.0.0:1 can be reached",
        "error: PALIMPSEST_SIGNALS_DATABASE_URL is not set:",
        "error: there is no local",
    ]
    assert "database_pooler" in done.stdout
    metrics = 'metrics_listen = "127.0.0.1:65535"\n'
    done = checked("--config", written(tmp_path, metrics))
    assert (done.exit_code, "error: 127.0.0.1:65535: " in done.stderr) == (1, True)
    shared = checked("--config", written(tmp_path, f'{metrics}caller_socket = "/run/x.sock"'))
    assert shared.exit_code == 0, "it starts no process of its own"
    accepted = checked("--config", written(tmp_path, f"insecure = true\n{lines[0]}"))
    assert accepted.exit_code == 0
    assert accepted.stderr.startswith("warning: no database is named")


def test_commands_that_read_settings_take_a_file() -> None:
    def taking(group: Any, *names: str) -> Iterator[str]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from taking(command, *names, name)
            elif any("--config" in one.opts for one in command.params):
                yield " ".join((*names, name))

    assert set(taking(typer.main.get_command(app))) == {
        *("up", "serve", "work", "executor", "migrate", "demo", "doctor", "health", "verify"),
        *("restore", "model replay", "model check", "config check", "erasure verify"),
        *("access bootstrap", "proxy"),
        *("eval questions", "eval search", "eval recall", "eval reliability"),
    }


def test_check_warns_of_secrets_that_others_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, TOML)
    os.chmod(path, 0o640)
    names = "database_url, redis_url, model_api_key, deployments"
    said = f"{path} has secrets ({names}) and can be read by others; chmod 600 {path}"
    done = checked("--config", path)
    assert (done.exit_code, done.stderr) == (0, f"warning: {said}\n")
    looked = CliRunner().invoke(app, ["doctor", "--json", "--config", path, "--address", "x:1"])
    lines = [json.loads(line) for line in looked.stdout.splitlines()]
    assert lines[0] == {
        "name": "settings",
        "level": "warn",
        "said": said.partition(";")[0],
        "advice": f"chmod 600 {path}",
    }
    assert lines[1]["said"] == f"those of this command's variables and of {path}"
    written(tmp_path, "stop_seconds = 30\ndatabase_pooler = 'none'")
    os.chmod(path, 0o644)
    assert "can be read" not in checked("--config", path).stderr


def test_the_example_is_a_file_with_every_default(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["config", "example"])
    assert done.exit_code == 0
    assert of_file(tmp_path, done.stdout) == Config()
    lines = [line.removeprefix("#") for line in done.stdout.splitlines()]
    settings = [line for line in lines if not line.startswith(" ") and not line.endswith(" =")]
    assert of_file(tmp_path, "\n".join(settings)) == Config()
    assert sum(" = " in line or line.endswith(" =") for line in lines if line[:1] > "A") == len(
        fields()
    )


def test_what_is_changed_for_a_process_is_not_looked_for_in_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PALIMPSEST_LISTEN_FILE", "/run/listen")
    monkeypatch.setenv("palimpsest_redis_url_file", "/run/redis")
    monkeypatch.setenv(KEY + FILE, "/run/key")
    monkeypatch.setenv("palimpsest_listen", "127.0.0.1:1")
    changes = {"PALIMPSEST_LISTEN": "127.0.0.1:0", "PALIMPSEST_REDIS_URL": "redis://x"}
    given = processes.environment(changes)
    ours = {name: value for name, value in given.items() if name.upper().startswith("PALIMPSEST")}
    assert ours == {**changes, KEY + FILE: "/run/key"}


@pytest.mark.parametrize("place", ["variable", "file", "toml", "option"])
def test_probes_find_the_folder_wherever_it_is_set(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
) -> None:
    toml = written(tmp_path, 'run_dir = "/nowhere/at/all"')
    name, options = "PALIMPSEST_RUN_DIR", []
    if place == "variable":
        monkeypatch.setenv(name, "/nowhere/at/all")
    elif place == "file":
        monkeypatch.setenv(name + FILE, written(tmp_path, "/nowhere/at/all\n", "run-dir"))
    elif place == "toml":
        monkeypatch.setenv(CONFIG, toml)
    else:
        options = ["--config", toml]
    said = "no process of Palimpsest answers in /nowhere/at/all\n"
    assert (health.main(options), capsys.readouterr().out) == (1, said)
    assert CliRunner().invoke(app, ["health", *options]).stdout == said


def test_a_probe_says_what_is_wrong_with_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "[")
    assert health.main(["--config", path]) == 1
    assert capsys.readouterr().err.startswith(f"error: {path}: is no TOML: ")
