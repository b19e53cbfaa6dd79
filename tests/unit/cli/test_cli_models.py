"""`palimpsest model check` shows what a provider accepts, beside what its profile says."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli.commands import app
from tests.support.fake_model import FakeModel, served

CHANGES = '{"changes":[{"op":"add","path":"colours.sky","value":"blue"}]}'


@dataclass
class Picky(FakeModel):
    """A server that takes JSON objects and no schemas, no system message and no temperature."""

    is_picky: bool = True
    key: str = ""

    def respond(self, request: dict[str, Any]) -> tuple[int, dict[str, str], str]:
        refusal = self._refusal(request) if self.is_picky else None
        if refusal is None:
            return super().respond(request)
        self.requests.append(request)
        return 400, {}, json.dumps({"error": {"message": refusal}})

    def _refusal(self, request: dict[str, Any]) -> str | None:
        kind = (request.get("response_format") or {}).get("type")
        if kind == "json_schema":
            return "This response_format type is unavailable now"
        if request["messages"][0]["role"] == "system":
            return "System role not supported"
        if "temperature" in request:
            return f"temperature is not taken, {self.key}"
        return None


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Picky]:
    model = Picky(reply=lambda _: CHANGES, key="sk-not-to-be-shown")
    with served(model) as url:
        monkeypatch.setenv("PALIMPSEST_MODEL", "openai/mine")
        monkeypatch.setenv("PALIMPSEST_MODEL_BASE_URL", f"{url}/v1")
        monkeypatch.setenv("PALIMPSEST_MODEL_API_KEY", model.key)
        yield model


def check(*options: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["model", "check", *options])
    return done.exit_code, done.stdout, done.stderr


def test_what_a_model_takes_is_shown_beside_its_profile(model: Picky) -> None:
    code, shown, told = check()
    table, _, _ = shown.partition("\n\n")
    rows = {line[:16].strip(): line for line in table.splitlines()}
    assert code == 1, "the profile says that it has a system message"
    assert "works" in rows["plain"]
    assert "refused" in rows["system message"]
    assert "differs" in rows["system message"]
    assert "refused" in rows["strict"]
    assert "differs" not in rows["strict"], "it would not be sent"
    assert "works" in rows["json_object"]
    assert "works" in rows["streaming"]
    suggested = next(line for line in shown.splitlines() if line.startswith("PALIMPSEST_"))
    said = json.loads(suggested.partition("=")[2].strip("'"))
    assert said == {
        "openai/mine": {"system": False, "structured": "json_object", "sampling": "never"}
    }
    assert "7 requests to openai/mine" in told
    assert "their price is not known" in told
    assert model.key not in shown + told


def test_what_is_suggested_fits(model: Picky, monkeypatch: pytest.MonkeyPatch) -> None:
    _, shown, _ = check()
    suggested = next(line for line in shown.splitlines() if line.startswith("PALIMPSEST_"))
    monkeypatch.setenv("PALIMPSEST_MODEL_PROFILES", suggested.partition("=")[2].strip("'"))
    code, shown, _ = check()
    assert code == 0
    assert "PALIMPSEST_MODEL_PROFILES" not in shown


def test_it_is_printed_for_programs_as_json(model: Picky) -> None:
    model.is_picky = False
    code, shown, _ = check("openai/other", "--json")
    *rows, last = map(json.loads, shown.splitlines())
    assert code == 0
    assert [row["form"] for row in rows] == [
        "plain",
        "system message",
        "json_object",
        "json_schema",
        "strict",
        "streaming",
        "temperature 0",
    ]
    assert {row["result"] for row in rows} == {"works"}
    assert (last["model"], last["ok"], last["requests"]) == ("openai/other", True, 7)
    assert last["suggested"] == {"openai/other": {"structured": "strict"}}
    assert last["profile"]["default_effort"] == "none"


def test_a_reply_of_another_form_is_no_success(model: Picky) -> None:
    model.is_picky = False
    model.reply = lambda _: "Of course! Here is the JSON."
    code, shown, _ = check("openai/other", "--json")
    results = {row["form"]: row["result"] for row in map(json.loads, shown.splitlines()[:-1])}
    assert (code, results["plain"]) == (0, "works")
    assert {results[one] for one in ("json_object", "json_schema", "strict")} == {"ignored"}


def test_the_cost_is_said_without_asking_anything(model: Picky) -> None:
    code, shown, told = check("openai/gpt-5", "--dry-run")
    assert (code, model.requests) == (0, [])
    assert "  default_effort     medium" in shown
    assert "requests to openai/gpt-5" in told


def test_levels_of_effort_are_asked_for_one_by_one(model: Picky) -> None:
    model.is_picky = False
    check("openai/gpt-5")
    efforts = [one["reasoning_effort"] for one in model.requests if "reasoning_effort" in one]
    assert efforts == ["minimal", "low", "medium", "high"]


def test_a_provider_that_refuses_everything_is_one_line(model: Picky) -> None:
    model.script = [(401, {}, '{"error": {"message": "Incorrect API key: sk-not-to-be-shown"}}')]
    done = CliRunner().invoke(app, ["model", "check"])
    assert "refused the key" in str(done.exception)
    assert model.key not in str(done.exception)
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpt", "is not PROVIDER/NAME"),
        ("offline/extractive", "has no provider"),
        ("openai/http://x", "is no name of a model"),
    ],
)
def test_what_is_no_model_of_a_provider_is_refused(name: str, said: str) -> None:
    done = CliRunner().invoke(app, ["model", "check", name])
    assert said in str(done.exception)
