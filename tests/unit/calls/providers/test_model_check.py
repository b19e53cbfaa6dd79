"""`palimpsest model check` at every provider, as an operator sees it."""

import json
import os
import subprocess
from collections.abc import Mapping

import pytest

from service.llm.providers.model_check import Checked, CheckResult, ModelCheck
from tests.providers.provider import KEY
from tests.providers.scenarios import Scenario, Turn
from tests.providers.server import PROVIDERS, Emulators
from tests.support import forking

CHANGES = json.dumps({"changes": [{"op": "add", "path": "colours.sky", "value": '"blue"'}]})


@pytest.fixture(autouse=True)
def says_json(servers: Emulators) -> None:
    for one in servers.values():
        one.answer = lambda _: CHANGES


async def checked(
    servers: Emulators, name: str, **more: object
) -> tuple[ModelCheck, list[Checked]]:
    end = servers.endpoint(name)
    check = ModelCheck(end.config(**more), end.model)
    return check, [await check.run(probe) for probe in check.probes]


@pytest.mark.parametrize("name", PROVIDERS)
async def test_the_profile_is_right_at_every_provider(servers: Emulators, name: str) -> None:
    check, done = await checked(servers, name)
    assert [(one.probe.name, one.said) for one in done if not one.is_ok] == []
    assert check.suggested(done) == {}
    assert len(servers[name].seen) == len(check.probes), "each is one request"


async def test_a_form_that_the_model_does_not_have(servers: Emulators) -> None:
    check, done = await checked(
        servers, "deepseek", model_profiles={"deepseek/deepseek-chat": {"structured": "strict"}}
    )
    wrong = {one.probe.name: one for one in done if not one.is_ok}
    assert set(wrong) == {"strict"}
    assert wrong["strict"].outcome is CheckResult.REFUSED
    assert "This response_format type is unavailable now" in wrong["strict"].said
    assert check.suggested(done) == {"deepseek/deepseek-chat": {"structured": "json_object"}}


def run(variables: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    names = ("PATH", "HOME", "LANG", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    return subprocess.run(
        [forking.python(), "-m", "service.cli", "model", "check", *arguments],
        env={**environment, **variables, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["anthropic", "azure"])
def test_a_table_of_what_works(servers: Emulators, name: str) -> None:
    end = servers.endpoint(name)
    found = run(end.variables)
    assert found.returncode == 0, found.stderr
    rows = {line.split("  ")[0]: line for line in found.stdout.partition("\n\n")[0].splitlines()}
    assert set(rows) > {"plain", "system message", "strict", "streaming", "temperature 0"}
    assert all("works" in line for form, line in rows.items() if form != "form")
    said = found.stderr.splitlines()
    # What it costs, then where it is asked, and nothing of litellm's.
    assert len(said) == 2
    assert f"requests to {end.model}" in said[0]
    assert ("at most $" in said[0]) == (name == "anthropic")
    assert ("their price is not known" in said[0]) == (name == "azure")
    assert f"asked at: emulated, {end.model} at {end.api_base}" in said[1]
    assert ("api_version" in said[1]) == (name == "azure")
    assert KEY not in found.stdout + found.stderr


def test_the_cost_is_printed_and_no_model_called(servers: Emulators) -> None:
    found = run(servers.endpoint("anthropic").variables, "--dry-run")
    assert found.returncode == 0
    assert "at most $" in found.stderr
    assert servers["anthropic"].seen == []


@pytest.mark.parametrize(
    ("said", "instead", "words"),
    [
        (KEY, "another-key-of-mine", "refused the key (status 401)"),
        ("http://127.0.0.1:", "http://nowhere.invalid:", "could not be reached (no connection)"),
    ],
)
def test_one_clear_error_where_nothing_works(
    servers: Emulators, said: str, instead: str, words: str
) -> None:
    variables = {
        name: value.replace(said, instead)
        for name, value in servers.endpoint("openai").variables.items()
    }
    found = run(variables)
    assert found.returncode == 1
    assert found.stdout.strip() == ""
    (last,) = [line for line in found.stderr.splitlines() if line.startswith("error: ")]
    assert words in last
    assert "another-key-of-mine" not in found.stderr
    assert servers["openai"].prompts == []


def test_a_model_that_says_something_else_differs(servers: Emulators) -> None:
    servers["groq"].answer = lambda _: Turn(scenario=Scenario.EMPTY)
    found = run(servers.endpoint("groq").variables)
    assert found.returncode == 1
    assert "ignored" in found.stdout
    assert "differs" in found.stdout
    assert "the reply ended otherwise: empty" in found.stdout
