"""Generating a schema with a scripted model: from the command line, and through a crash."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

import palimpsest
from palimpsest import FailedPrecondition, GeneratedSchema, OperationInfo
from tests.acceptance.cli.test_cli import assert_one_clear_line, run, succeed
from tests.acceptance.memories.kept_memory import DEADLINE_SECONDS, scripted
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import Servers, api, eventually, worker

DOMAIN = "Reviews of bicycles."
QUERY = "Which bicycle is the lightest?"
GOOD = "class Bicycles:\n    weights: dict[str, float]\n"
BAD = "class Bicycles:\n    weights: set[float]\n"


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with fake_model() as model:
        yield model


async def generate(address: str) -> OperationInfo[GeneratedSchema]:
    async with palimpsest.connect(address) as client:
        session = await client.create_session("s", exist_ok=True)
        operation = await session.request_schema(DOMAIN, QUERY)
        with suppress(FailedPrecondition):
            await operation.wait(timeout=300)
        return operation.info


def result(info: OperationInfo[GeneratedSchema]) -> tuple[GeneratedSchema, palimpsest.Usage]:
    assert info.result is not None
    assert info.usage is not None
    return info.result, info.usage


def test_a_model_that_errs_gets_the_reason_and_one_that_never_learns_is_given_up(
    servers: Servers, model: FakeModel
) -> None:
    url = servers.new_database()
    model.reply = lambda n: BAD if n == 1 else f"Of course!\n```python\n{GOOD}```"
    with api(url) as (_, address), worker(url, **scripted(model)) as process:
        schema, usage = result(asyncio.run(generate(address)))
        assert (schema.schema_source, schema.attempts, schema.model) == (GOOD, 2, "openai/fake")
        assert (usage.calls, usage.input_tokens) == (2, 200)
        first, second = model.prompts
        assert second.startswith(first)
        assert BAD in second
        assert "line 2, column 14: set is no type that a schema knows" in second

        model.reply = lambda _: "I would rather not."
        failed = asyncio.run(generate(address))
        assert (failed.state, failed.usage and failed.usage.calls) == ("failed", 3)
        assert failed.error is not None
        assert failed.error.reason == "SCHEMA_NOT_GENERATED"
        assert "no valid schema in 3 tries" in str(failed.error)
        assert len(model.prompts) == 5
        assert "rather not" not in process.log(), "the log holds no replies"


def test_a_worker_killed_between_two_calls_pays_for_no_reply_twice(
    servers: Servers, model: FakeModel
) -> None:
    url = servers.new_database()
    killed = threading.Event()

    def reply(n: int) -> str:
        if n == 1:
            return BAD
        if n == 2:
            # The worker is killed meanwhile; the call continues in its executor.
            killed.wait(150)
        return GOOD

    model.reply = reply
    drafts: list[OperationInfo[GeneratedSchema]] = []
    with api(url) as (_, address):
        waiting = threading.Thread(target=lambda: drafts.append(asyncio.run(generate(address))))
        with (
            worker(url, **scripted(model)) as doomed,
            psycopg.connect(servers.as_superuser(url), autocommit=True) as look,
        ):
            waiting.start()
            eventually("the second call is under way", lambda: len(model.prompts) == 2)
            doomed.kill()
            replies = look.execute("SELECT reply, memory_id FROM call").fetchall()
            assert replies == [(BAD, None)]
            killed.set()
        with worker(url, **scripted(model)):
            waiting.join(200)
    (draft,) = drafts
    schema, usage = result(draft)
    assert (schema.schema_source, schema.attempts, usage.calls) == (GOOD, 2, 2)
    assert len(model.prompts) == 2


@pytest.mark.prove
def test_what_is_generated_makes_a_memory_from_the_command_line(
    address: str, tmp_path: Path
) -> None:
    at = {"PALIMPSEST_ADDRESS": address}
    session = f"cli-{uuid4().hex}"
    file = tmp_path / "schema.py"
    wanted = ("The museums of a harbour town.", "--example", "What is the price of each museum?")
    generate = ("schema", "generate", *wanted, "--session", session)
    done = run(*generate, **at)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("class Notes:\n")
    assert done.stderr.startswith("generating a schema\nby offline/extractive, after 1 reply")
    succeed(*generate, "--out", str(file), **at)
    assert file.read_text() == done.stdout
    assert_one_clear_line(run(*generate, "--out", str(file), **at), "exists already")
    assert succeed("schema", "check", str(file), **at) == done.stdout
    checked = json.loads(
        succeed("schema", "check", "-", "--json", stdin=done.stdout.encode(), **at)
    )
    assert checked == {"schema_source": done.stdout}
    document = b'{"title": "A", "type": "object", "properties": {"x": {"type": "string"}}}'
    shown = succeed("schema", "check", "-", stdin=document, **at)
    assert shown == "class A:\n    x: str\n"
    succeed("memory", "create", "prism", "m", "--schema", str(file), "--session", session, **at)

    drafted = json.loads(succeed(*generate, "--json", **at))
    assert drafted["schema_source"] == done.stdout
    assert (drafted["model"], drafted["attempts"]) == ("offline/extractive", 1)
    assert drafted["usage"]["calls"] == 1
    assert succeed("operation", "wait", drafted["operation"], **at) == done.stdout
    shown = succeed("operation", "show", drafted["operation"], **at)
    assert shown == f"schema of session {session}: done\n{done.stdout}"
    listed = succeed("operation", "list", "--session", session, "--kind", "schema", **at)
    assert drafted["operation"] in listed
    assert_one_clear_line(run("operation", "show", "0" * 64, **at), "there is no operation")
    spent = json.loads(succeed("usage", "--session", session, "--json", **at))
    assert [(line["purpose"], line["calls"]) for line in spent["lines"]] == [("schema", 3)]


def test_a_file_that_cannot_be_written_costs_no_schema(address: str, tmp_path: Path) -> None:
    at = {"PALIMPSEST_ADDRESS": address}
    wanted = ("Ships.", "--example", "Which ship?", "--out")
    nowhere = tmp_path / "no folder" / "schema.py"
    refused = run("schema", "generate", *wanted, str(nowhere), **at)
    assert_one_clear_line(refused, f"cannot write {nowhere}: there is no folder")
    assert refused.stdout == "", "nothing was asked"
    too_long = tmp_path / ("x" * 300)
    refused = run("schema", "generate", *wanted, str(too_long), **at)
    assert_one_clear_line(refused, f"cannot write {too_long}: File name too long")
    dangling = tmp_path / "link"
    dangling.symlink_to(nowhere)
    done = run("schema", "generate", *wanted, str(dangling), **at)
    assert_one_clear_line(done, f"cannot write {dangling}")
    assert done.stdout.startswith("class Notes:\n"), "what was paid for is printed"


@pytest.mark.prove
def test_a_schema_that_is_late_can_be_shown_later(servers: Servers) -> None:
    url = servers.new_database()
    with api(url) as (_, address):
        at = {"PALIMPSEST_ADDRESS": address}
        wanted = ("Ships.", "--example", "Which ship?", "--timeout", str(DEADLINE_SECONDS))
        late = run("schema", "generate", *wanted, **at)
        assert_one_clear_line(late, "has not ended in time; it goes on")
        operation = late.stderr.split("operation ")[1].split(" ")[0]
        assert "pending" in succeed("operation", "show", operation, **at)
        with worker(url):
            shown = succeed("operation", "wait", operation, "--timeout", "300", **at)
        assert shown.startswith("class Notes:\n")
        cancelled = json.loads(succeed("operation", "cancel", operation, "--json", **at))
        assert (cancelled["operation"], cancelled["state"]) == (operation, "done")
