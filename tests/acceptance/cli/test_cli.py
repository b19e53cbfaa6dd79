"""The command line as a user has it: real processes, one clear line for what goes wrong."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import typer
from typer.testing import CliRunner

from service.cli.commands import app
from service.cli.tasks import TASKS
from tests.support import forking
from tests.support.embedded import children_of, naming
from tests.support.harness import Servers, eventually

TEXT = """The harbour museum
==================

The harbour museum is a collection of old ships. It is closed on Mondays and in winter.

The bakery
==========

The bakery is the oldest house of the town. It sells rolls before the sun is up.
"""

#: How long a command may take on a busy machine: this only ends what hangs.
RUN_SECONDS = 300


#: What a process logs when the database can be reached again.
BACK = "the database is back; listening again"


def has_text(file: Path, text: str) -> bool:
    return text in file.read_text()


def run(*arguments: str, stdin: Any = b"", **environment: Any) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "COLUMNS": "200", **environment}
    return forking.run(arguments, environment=variables, seconds=RUN_SECONDS, stdin=stdin)


def succeed(*arguments: str, stdin: Any = b"", **environment: Any) -> str:
    done = run(*arguments, stdin=stdin, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_one_clear_line(done: subprocess.CompletedProcess[str], about: str) -> None:
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert about in last


class Up:
    """`palimpsest up`, running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.popen = subprocess.Popen(
            [forking.python(), "-m", "service.cli", "up", "--listen", "127.0.0.1:0"],
            env={
                **os.environ,
                "PALIMPSEST_DATA_DIR": str(folder / "data"),
                "PALIMPSEST_DEAD_AFTER_SECONDS": "2",
                "PALIMPSEST_HEARTBEAT_SECONDS": "0.5",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert "listens at" in line, self.popen.communicate()[1]
        self.address = line.split("listens at ")[1].split(";")[0]

    def close(self) -> None:
        self.popen.kill()
        self.popen.communicate()
        # What it started ends by itself, and writes until then to what is to be removed.
        eventually("nothing is left of it", lambda: not children_of(self.folder))


@pytest.mark.prove
def test_up_keeps_everything_through_ctrl_c_and_kill(folder: Path) -> None:
    (folder / "text.txt").write_text(TEXT)
    first = Up(folder)
    at = {"PALIMPSEST_ADDRESS": first.address}
    succeed("ingest", str(folder / "text.txt"), "--chunk-characters", "120", **at)
    second = run("up", PALIMPSEST_DATA_DIR=str(folder / "data"))
    assert_one_clear_line(second, "another process uses the data folder")
    first.popen.send_signal(signal.SIGKILL)
    first.popen.communicate()
    eventually("nothing is left of the killed one", lambda: not children_of(folder))

    again = Up(folder)
    at = {"PALIMPSEST_ADDRESS": again.address}
    shown = json.loads(succeed("memory", "show", "--applied", "--json", **at))
    assert shown["applied_position"] == shown["head"] > 1
    answer = json.loads(succeed("ask", "When is the harbour museum closed?", "--json", **at))
    assert "closed on Mondays" in answer["text"]
    assert answer["citations"]
    repeated = json.loads(
        succeed("ingest", str(folder / "text.txt"), "--chunk-characters", "120", "--json", **at)
    )
    assert repeated["skipped"] == repeated["chunks"] == shown["head"]
    again.popen.send_signal(signal.SIGINT)
    _, stderr = again.popen.communicate(timeout=200)
    assert again.popen.returncode == 0
    assert "stopped; nothing is lost" in stderr
    assert children_of(folder) == []


@pytest.mark.prove
def test_a_restart_of_the_database_is_a_few_lines(folder: Path) -> None:
    up = Up(folder)
    try:
        at = {"PALIMPSEST_ADDRESS": up.address}
        succeed("remember", "before", "--wait", **at)
        pid = (folder / "data" / "postgres" / "data" / "postmaster.pid").read_text().split()[0]
        # A fast shutdown: connections end, and new ones are refused until it runs again.
        os.kill(int(pid), signal.SIGINT)
        assert up.popen.stderr is not None
        said = "".join(line for line in iter(up.popen.stderr.readline, "PostgreSQL runs again\n"))
        assert said.endswith("PostgreSQL died; starting it again\n")
        succeed("remember", "after", "--wait", **at)
        for name in ("serve.log", "work-1.log"):
            log = folder / "data" / "logs" / name
            eventually(f"{name} says that it is back", partial(has_text, log, BACK))
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            events = [one["event"] for one in lines]
            assert events.count("the database is away; polling, and trying again") == 1
            assert not [one for one in lines if "exception" in one or "Traceback" in str(one)]
            # Each loop of a worker reports it once, and that it goes on.
            assert len(events) < 30, events
    finally:
        up.close()


@pytest.mark.prove
def test_a_worker_that_dies_is_started_again(folder: Path) -> None:
    up = Up(folder)
    try:
        (worker,) = set(naming("service.cli\0work")) & set(children_of(folder))
        os.kill(worker, signal.SIGKILL)
        answered = succeed("ingest", "-", stdin=TEXT.encode(), PALIMPSEST_ADDRESS=up.address)
        assert "everything applied" in answered
    finally:
        up.close()


def test_the_demo_prints_one_json_object_last_and_leaves_nothing(folder: Path) -> None:
    (folder / "text.txt").write_text(TEXT * 3)
    done = run("demo", "--json", "--file", str(folder / "text.txt"), TMPDIR=str(folder))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert result["chunks"] == result["acked"] == result["applied_position"] >= 1
    assert result["revisions"] >= 1
    assert result["amendments"] >= 1
    assert result["calls"] >= result["revisions"] - 1 + 3
    assert result["tokens"]["input_tokens"] > 0
    assert len(result["answers"]) == 3
    for answer in result["answers"]:
        assert set(answer) == {"query", "text", "citations"}
    assert children_of(folder) == []
    assert [one.name for one in folder.iterdir()] == ["text.txt"]


def test_a_demo_on_a_running_service_is_a_session_of_it_and_says_which(
    folder: Path, address: str
) -> None:
    (folder / "text.txt").write_text(TEXT)
    asked = ("demo", "--json", "--file", str(folder / "text.txt"), "--address", address)
    done = run(*asked, TMPDIR=str(folder))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert result["chunks"] == result["applied_position"] == 1
    assert f"the session {result['session']} is left" in done.stderr
    shown = run("session", "show", result["session"], "--json", "--chunks=0", "--address", address)
    assert json.loads(shown.stdout)["head"] == 1, shown.stderr
    again = json.loads(run(*asked).stdout.strip().splitlines()[-1])
    assert again["session"] != result["session"]
    assert [one.name for one in folder.iterdir()] == ["text.txt"]


@pytest.mark.prove
@pytest.mark.parametrize("task", ["book", "code", "tables"])
def test_each_task_of_the_paper_has_its_demo(task: str) -> None:
    done = run("demo", "--task", task, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.strip().splitlines()[-1])
    job = TASKS[task]()
    assert result["acked"] == result["applied_position"] == len(job.texts)
    assert result["amendments"] > 0
    assert any(answer["citations"] for answer in result["answers"])


@pytest.mark.prove
def test_the_demos_questions_are_answered_from_the_right_chunks(servers: Servers) -> None:
    job = TASKS["reference"]()
    done = run("demo", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.strip().splitlines()[-1])
    right = 0
    for answer, subject in zip(
        result["answers"], ('"assert" statement', "__exit__()", '"global" statement'), strict=True
    ):
        cited = [job.texts[position - 1] for position in answer["citations"]]
        right += bool(cited) and all(subject in text for text in cited)
    assert right >= 2, result["answers"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "about"),
    [
        (("ingest", "-"), b"\xff\xfe\xff", "standard input is not UTF-8: byte 0 is 0xff"),
        (("ingest", "-"), b"a\0b", "NUL character"),
        (("ingest", "-"), b"  \n ", "has no text"),
        (("ingest", "/nowhere/at/all"), b"", "cannot read /nowhere/at/all"),
        (("ingest", "-", "--session", "no/good"), b"text", "session.id: "),
        (("demo", "--address", "nowhere"), b"", "nowhere"),
        (("ask", "?", "--session", "nobody"), b"", "there is no session 'nobody'"),
        (("ask", "", "--session", "nobody"), b"", "query"),
        (("memory", "show", "m", "--session", "nobody"), b"", "there is no session 'nobody'"),
        (("memory", "log", "m", "--session", "nobody"), b"", "there is no session 'nobody'"),
        (("session", "show", "nobody"), b"", "there is no session 'nobody'"),
        (("usage", "--session", "nobody"), b"", "there is no session 'nobody'"),
        (("memory", "create", "prism", "m", "--schema", "/nowhere"), b"", "cannot read /nowhere"),
        (("memory", "create", "prism", "m"), b"", "give --schema, a file; `palimpsest schema"),
        (("memory", "create", "prism", "m", "--schema", "-"), b'{"a": ', "line 1, column 7"),
        (("memory", "revisions", "m", "-s", "nobody"), b"", "there is no session 'nobody'"),
        (("memory", "why", "$.x", "-s", "nobody"), b"", "there is no session 'nobody'"),
        (("memory", "diff", "m", "-s", "nobody"), b"", "there is no session 'nobody'"),
        (("memory", "watch", "m", "-s", "nobody"), b"", "there is no session 'nobody'"),
        (("memory", "set", "$.x", "1", "-s", "nobody"), b"", "there is no session 'nobody'"),
        (("memory", "unset", "$.x", "-s", "nobody"), b"", "there is no session 'nobody'"),
        (("memory", "rollback", "0", "-s", "nobody"), b"", "there is no session 'nobody'"),
        (("memory", "fold", "m", "-s", "nobody"), b"", "there is no session 'nobody'"),
        (("memory", "consolidate", "m", "-s", "nobody"), b"", "there is no session 'nobody'"),
        (("memory", "update", "-s", "nobody"), b"", "give --schema, --model or"),
        (("memory", "rebuild", "prism", "n", "-s", "nobody"), b"", "there is no session 'nobody'"),
        (("memory", "show", "m", "--after", ""), b"", "--after: the token is empty"),
        (("ask", "?", "--after", "x", "--applied"), b"", "give --after or --applied, not both"),
        (("memory", "log", "m", "--rejected", "--path", "$.x"), b"", "--rejected shows all"),
        (("schema", "generate", "x", "--example", "?", "-o", "/no/x"), b"", "no folder /no"),
        (("memory", "flush", "-s", "nobody"), b"", "there is no session 'nobody'"),
        (("schema", "generate", "", "--example", "?"), b"", "domain: "),
        (("schema", "generate", "x", "--example", "?", "-s", "no/good"), b"", "session.id: "),
        (("schema", "generate", "x", "--example", "?", "-o", "/"), b"", "/ exists already"),
        (("operation", "show", "7"), b"", "there is no operation"),
        (("schema", "check", "/nowhere"), b"", "cannot read /nowhere"),
        (("schema", "check", "-"), b"class A(", "line 1, column 8"),
        (("cost", "-s", "nobody"), b"", "there is no session 'nobody'"),
        (("cost", "-s", "nobody", "-m", "m", "--by-day"), b"", "there is no session 'nobody'"),
        (("cost", "-s", "no/good"), b"", "session: must be printable, without a slash"),
        (("cost", "--memory", "m"), b"", "--memory needs the session"),
        (("cost", "--day", "2026-02-30"), b"", "--day: '2026-02-30' is no day such as"),
        (("cost", "--from", "20260203"), b"", "--from: '20260203' is no day such as"),
        (("cost", "--day", "2026-02-03", "--to", "2026-02-04"), b"", "--day, or --from and --to"),
        (("cost", "--from", "2026-02-03", "--to", "2026-02-02"), b"", "is after --to"),
        (("budget", "set", "day"), b"", "whose budget is it?"),
        (("budget", "set", "day", "--tenant", "-s", "s"), b"", "whose budget is it?"),
        (("budget", "set", "day", "--tenant"), b"", "give --tokens or --usd"),
        (("budget", "set", "day", "-m", "m", "--tenant"), b"", "--memory needs --session"),
        (("budget", "set", "day", "--tenant", "--usd", "much"), b"", "is no amount such as 2.50"),
        (("budget", "set", "day", "--tenant", "--usd", "NaN"), b"", "is no amount such as 2.50"),
        (("budget", "set", "day", "--tenant", "--usd", "-1"), b"", "'-1' is negative"),
        (("budget", "set", "day", "--tenant", "--usd", "0.0000001"), b"", "over 6 decimals"),
        (("budget", "set", "day", "--tenant", "--usd", "1e99"), b"", "too large"),
        (("budget", "set", "day", "--tenant", "--usd", "1e999999999"), b"", "too large"),
        (("budget", "set", "day", "-s", "nobody", "--tokens", "1"), b"", "no session 'nobody'"),
        (("budget", "list", "-s", "nobody"), b"", "there is no session 'nobody'"),
        (("budget", "delete", "total", "--tenant"), b"", "the tenant has no budget for all time"),
    ],
)
def test_bad_input_is_one_clear_line(
    address: str, arguments: tuple[str, ...], stdin: bytes, about: str
) -> None:
    done = run(*arguments, stdin=stdin, PALIMPSEST_ADDRESS=address)
    assert_one_clear_line(done, about)


def test_bad_schemas_names_and_tokens_are_one_clear_line(address: str, folder: Path) -> None:
    session = f"cli-{uuid4().hex}"
    at = {"PALIMPSEST_ADDRESS": address}
    succeed("session", "create", session, **at)
    assert_one_clear_line(run("session", "create", session, **at), "already")
    schema = folder / "schema.py"
    evil = folder / "evil"
    create = ("memory", "create", "prism", "m", "--schema", str(schema), "--session", session)
    for source, about in (
        ("class A(", "line 1, column 8"),
        ("class A:\n    x: bytes", "bytes is no type"),
        (f"open({str(evil)!r}, 'w')", "classes only"),
    ):
        schema.write_text(source)
        assert_one_clear_line(run(*create, **at), about)
    assert not evil.exists()
    schema.write_text("class A:\n    x: list[str]")
    assert_one_clear_line(run(*create, "--final-task", "x" * 8193, **at), "final_task")
    other = run("memory", "create", "tree", "t", "--final-task", "x", "-s", session, **at)
    assert (other.returncode, "No such option: --final-task" in other.stderr) == (2, True)
    succeed(*create, "--final-task", "One number.", "--steps", "focused", **at)
    assert_one_clear_line(run(*create, **at), "has a memory 'm' already")
    asked = run("ask", "?", "--session", session, "--memory", "m", "--after", "nonsense", **at)
    assert_one_clear_line(asked, "not issued by this service")
    long = run("memory", "why", "$." + "x" * 19_000, "-m", "m", "-s", session, **at)
    assert_one_clear_line(long, "a key of more than 512 characters")
    late = run("memory", "show", "m", "--session", session, "--revision", "5", **at)
    assert_one_clear_line(late, "has no revision 5; the newest is 0")


def test_a_memory_is_looked_back_at_and_changed_by_hand(address: str, folder: Path) -> None:
    session = f"cli-{uuid4().hex}"
    at = {"PALIMPSEST_ADDRESS": address, "PALIMPSEST_LOG_LEVEL": "error"}

    def memory(command: str, *arguments: str) -> str:
        return succeed("memory", command, *arguments, "--session", session, **at)

    schema = folder / "schema.py"
    schema.write_text("class Museum:\n    title: str\n    visitors: int\n")
    succeed("session", "create", session, **at)
    memory("create", "prism", "m", "--schema", str(schema))
    made = json.loads(memory("set", "$.title", "1984", "-m", "m", "--comment", "why not", "--json"))
    assert made["amendments"][0]["value"] == "1984", "a text, where the schema has a text"
    assert memory("set", "/visitors", "1984", "-m", "m") == "r2 edit add $['visitors'] 1984\n"
    assert memory("set", "$.title", "1984", "-m", "m") == "nothing changes at revision 2\n"
    assert_one_clear_line(
        run("memory", "set", "$.visitors", "many", "-m", "m", "-s", session, **at),
        "edit 1, $.visitors: the value is a str, not int",
    )
    late = run("memory", "unset", "$.title", "-m", "m", "-s", session, "--expect", "1", **at)
    assert_one_clear_line(late, "memory 'm' is at revision 2, not 1")
    assert memory("unset", "$.title", "-m", "m", "--expect", "2") == "r3 edit remove $['title']\n"
    assert memory("diff", "m", "--revision", "1") == (
        "m r1 -> r3\n- $['title'] \"1984\"\n+ $['visitors'] 1984\n"
    )
    assert memory("why", "$.title", "-m", "m").splitlines() == [
        "$['title'] at revision 3:",
        "  nothing is there",
        "r3 edit remove $['title'] (in effect)",
        "r1 edit add $['title'] \"1984\" (replaced)",
        "    why not",
    ]
    assert "as it was at revision 1" in memory("rollback", "1", "-m", "m", "--comment", "back")
    kinds = [json.loads(line)["kind"] for line in memory("revisions", "m", "--json").splitlines()]
    assert kinds == ["create", "edit", "edit", "edit", "rollback"]
    assert memory("fold", "m") == "m has nothing to fold at revision 4\n"
    assert memory("consolidate", "m", "--wait") == "m is consolidated, at revision 5\n"
    schema.write_text("class Museum:\n    title: str\n    visitors: int\n    more: str\n")
    assert memory("update", "m", "--schema", str(schema)) == "m is updated, at revision 6\n"
    wider = folder / "wider.json"
    wider.write_text('{"type": "object", "properties": {"title": {"type": "string"}}}')
    again = json.loads(memory("rebuild", "prism", "n", "-m", "m", "--schema", str(wider), "--json"))
    assert (again["rebuilt_from"], again["revision"]) == ("m", 0)
    assert set(json.loads(memory("flush", "--json"))) == {"read_token", "head"}


def test_a_watch_goes_on_after_its_token_until_ctrl_c(address: str, folder: Path) -> None:
    session = f"cli-{uuid4().hex}"
    at = {"PALIMPSEST_ADDRESS": address}
    schema = folder / "schema.py"
    schema.write_text("class Museum:\n    title: str\n")
    succeed("session", "create", session, **at)
    succeed("memory", "create", "prism", "m", "--schema", str(schema), "-s", session, **at)
    for title in ("a", "b"):
        succeed("memory", "set", "$.title", title, "-m", "m", "-s", session, **at)

    def watch(lines: int, *options: str) -> list[dict[str, Any]]:
        command = ("memory", "watch", "m", "-s", session, "--json", *options)
        popen = subprocess.Popen(
            [forking.python(), "-m", "service.cli", *command],
            env={**os.environ, **at},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert popen.stdout is not None
        told = [json.loads(popen.stdout.readline()) for _ in range(lines)]
        popen.send_signal(signal.SIGINT)
        _, stderr = popen.communicate(timeout=200)
        assert popen.returncode == 130
        assert f"go on with --token {told[-1]['resume_token']}" in stderr
        return told

    everything = watch(2, "--all")
    assert [one["revision"] for one in everything] == [1, 2]
    behind = watch(1, "--token", everything[0]["resume_token"])
    assert [one["amendments"][0]["value"] for one in behind] == ["b"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("memory", "show", "--revision", str(2**64)),
        ("memory", "show", "--position", str(2**64)),
        ("memory", "show", "--timeout", "inf"),
        ("memory", "log", "--from", str(2**64)),
        ("memory", "log", "--to", str(2**64)),
        ("memory", "why", "$.x", "--revision", str(2**64)),
        ("memory", "diff", "--revision", str(2**64)),
        ("memory", "diff", "--other-revision", str(2**64)),
        ("memory", "set", "$.x", "1", "--expect", str(2**64)),
        ("memory", "rollback", str(2**64)),
        ("memory", "create", "prism", "m", "--schema", "-", "--chunk-tokens", "100001"),
        ("memory", "create", "prism", "m", "--schema", "-", "--fold-tokens", "1000001"),
        ("memory", "create", "prism", "m", "--schema", "-", "--memory-tokens", "1000001"),
        ("memory", "rebuild", "prism", "n", "--chunk-tokens", "100001"),
        ("session", "show", "s", "--from", str(2**64)),
        ("ask", "?", "--timeout", "inf"),
        ("budget", "set", "day", "--tenant", "--tokens", str(2**63)),
    ],
)
def test_numbers_out_of_range_are_wrong_usage(arguments: tuple[str, ...]) -> None:
    done = run(*arguments, PALIMPSEST_ADDRESS="127.0.0.1:1")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "should be less than or equal to" in done.stderr.strip().splitlines()[-1]


def test_nothing_to_talk_to_is_one_clear_line() -> None:
    done = run("ask", "?", "--address", "127.0.0.1:1", "--timeout", "2")
    assert_one_clear_line(done, "cannot reach Palimpsest at 127.0.0.1:1")


@pytest.mark.parametrize("command", ["serve", "work"])
def test_a_database_that_is_not_there_is_one_clear_line(command: str, servers: Servers) -> None:
    assert_one_clear_line(run(command), "PALIMPSEST_DATABASE_URL is not set")
    nowhere = "postgresql://u:secret-word@127.0.0.1:1/d"
    quick = {"PALIMPSEST_START_SECONDS": "0.1", "PALIMPSEST_DATABASE_URL": nowhere}
    done = run(command, **quick)
    assert_one_clear_line(done, "cannot reach the database")
    assert "secret-word" not in done.stderr
    assert_one_clear_line(run("migrate", PALIMPSEST_DATABASE_URL=nowhere), "cannot migrate")
    assert_one_clear_line(
        run(command, PALIMPSEST_POOL_SIZE="none"), "PALIMPSEST_POOL_SIZE: Input should be"
    )


def test_a_database_that_is_not_migrated_is_one_clear_line(servers: Servers) -> None:
    import psycopg

    from tests.support.harness import with_database

    with psycopg.connect(servers.postgres.superuser_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE empty OWNER palimpsest TEMPLATE template0")
    url = with_database(servers.postgres.url, "empty")
    done = run("serve", PALIMPSEST_DATABASE_URL=url)
    assert_one_clear_line(done, "run `palimpsest migrate`")
    assert "migrated from nothing" in succeed("migrate", PALIMPSEST_DATABASE_URL=url)
    assert succeed("migrate", PALIMPSEST_DATABASE_URL=url).startswith("at ")
    superuser = with_database(servers.postgres.superuser_url, "empty")
    assert "at " in succeed("migrate", PALIMPSEST_DATABASE_URL=superuser)


def test_a_database_for_signals_that_is_not_there_is_one_clear_line(servers: Servers) -> None:
    nowhere = {"PALIMPSEST_SIGNALS_DATABASE_URL": "postgresql://u:secret-word@127.0.0.1:1/d"}
    done = run("serve", PALIMPSEST_DATABASE_URL=servers.new_database(), **nowhere)
    assert_one_clear_line(done, "cannot reach PALIMPSEST_SIGNALS_DATABASE_URL")
    assert "secret-word" not in done.stderr


def test_a_port_that_is_taken_is_one_clear_line(servers: Servers, address: str) -> None:
    url = servers.new_database()
    done = run("serve", "--listen", address, PALIMPSEST_DATABASE_URL=url)
    assert_one_clear_line(done, f"cannot listen at {address}")


def test_every_command_has_help() -> None:
    def commands(group: Any, *names: str) -> Iterator[tuple[str, ...]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from commands(command, *names, name)
            else:
                yield (*names, name)

    found = list(commands(typer.main.get_command(app)))
    assert {("up",), ("ask",), ("eval", "search"), ("trajectory", "export")} <= set(found)
    for command in found:
        done = CliRunner().invoke(app, [*command, "--help"])
        assert (done.exit_code, "--help" in done.output) == (0, True), command
    # And as a process, once.
    assert "--help" in succeed("up", "--help")
