"""Exchanges that are recorded, and read once more without a model."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli.commands import app
from service.cli.run import read_config
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.llm.providers.failures import ModelFailure
from service.llm.providers.transport import LitellmTransport
from tests.support.fake_model import FakeModel, fake_model

KEY = 'sk-quite-"secret"-key'
ASK = ModelRequest(
    purpose=Purpose.REVISE,
    template="t/1",
    segments=(
        Segment(kind=SegmentKind.TASK, text="Keep the facts.\n"),
        Segment(kind=SegmentKind.CHUNK, text=f"The key is {KEY}.", reusable=False),
    ),
    max_output_tokens=10,
)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeModel]:
    with fake_model() as model:
        monkeypatch.setenv("PALIMPSEST_MODEL_BASE_URL", model.url)
        monkeypatch.setenv("PALIMPSEST_MODEL_API_KEY", KEY)
        yield model


def only(folder: Path) -> Path:
    """Returns the only file in a folder."""
    (path,) = folder.iterdir()
    return path


async def recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the file of one call."""
    monkeypatch.setenv("PALIMPSEST_RECORD", str(folder))
    with suppress(ModelFailure):
        await LitellmTransport(read_config()).complete(ASK, "openai/m")
    return only(folder)


def replayed(path: Path) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["model", "replay", str(path), "--json"])
    said: dict[str, Any] = json.loads(done.stdout)
    return done.exit_code, said


def reply(finish: str, **message: Any) -> str:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps(body)


@pytest.mark.parametrize(
    ("status", "body", "code", "found"),
    [
        (200, reply("stop", content="a ship"), 0, {"end": "complete", "text": "a ship"}),
        (200, reply("length", content="a sh"), 1, {"end": "length"}),
        (200, reply("stop", refusal="I cannot"), 1, {"end": "refusal", "said": "I cannot"}),
        (401, '{"error": {"message": "no"}}', 1, {"fault": "key refused"}),
        (400, '{"error": {"message": "bad"}}', 1, {"fault": "request refused"}),
        (500, "{}", 1, {"fault": "failing"}),
    ],
)
async def test_what_was_recorded_gives_the_same_again(
    model: FakeModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    body: str,
    code: int,
    found: dict[str, str],
) -> None:
    model.script = [(status, {}, body)]
    path = await recorded(tmp_path / "exchanges", monkeypatch)
    asked = len(model.requests)
    exit_code, said = await asyncio.to_thread(replayed, path)
    assert exit_code == code
    assert found.items() <= said.items()
    assert (said["model"], said["purpose"], said["template"]) == ("openai/m", "revise", "t/1")
    assert len(model.requests) == asked, "no model is asked"


async def test_a_recorded_exchange_holds_no_key_and_is_its_owners(
    model: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await recorded(tmp_path / "exchanges", monkeypatch)
    said = json.loads(path.read_text())
    assert "quite" not in path.read_text()
    assert said["segments"][1]["text"] == "The key is [removed]."
    assert said["arguments"]["messages"][0]["content"] == "Keep the facts.\n"
    assert path.stat().st_mode & 0o777 == 0o600


async def test_fields_of_the_provider_may_be_secrets(
    model: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = '{"openai/*": {"extra": {"token": "secret-word"}}}'
    monkeypatch.setenv("PALIMPSEST_MODEL_SETTINGS", setting)
    path = await recorded(tmp_path / "exchanges", monkeypatch)
    said = path.read_text()
    assert model.requests[0]["token"] == "secret-word"
    assert "secret-word" not in said
    assert json.loads(said)["arguments"]["extra_body"] == {"token": "[removed]"}


async def test_a_folder_that_cannot_be_written_fails_no_call(
    model: FakeModel, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    config = read_config(record=tmp_path / "file")
    assert (await LitellmTransport(config).complete(ASK, "openai/m")).text


@pytest.mark.parametrize("content", ["", "[]", '{"version": 1}', '{"version": 9}', "\xff"])
def test_another_file_is_refused_in_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content.encode("latin-1"))
    done = CliRunner().invoke(app, ["model", "replay", str(path)])
    assert "exchange" in str(done.exception)
    gone = CliRunner().invoke(app, ["model", "replay", str(tmp_path / "gone")])
    assert "cannot be read: No such file" in str(gone.exception)


@pytest.mark.parametrize(
    "changed", [{"native": [1, 2]}, {"response": [1]}, {"segments": [{"kind": "task"}]}]
)
async def test_what_was_changed_is_refused_in_one_sentence(
    model: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    path = await recorded(tmp_path / "exchanges", monkeypatch)
    said = await asyncio.to_thread(path.read_text)
    await asyncio.to_thread(path.write_text, json.dumps({**json.loads(said), **changed}))
    done = await asyncio.to_thread(CliRunner().invoke, app, ["model", "replay", str(path)])
    assert "is no whole exchange" in str(done.exception)
