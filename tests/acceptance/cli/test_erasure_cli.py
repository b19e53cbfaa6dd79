"""`palimpsest forget` and `palimpsest erasure`, against a running service."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import palimpsest
from service.cli.commands import app
from service.cli.output import CommandError
from service.domain.log.receipts import from_json, to_json
from service.usecases.operations.signing import sign
from tests.support.harness import Servers, api, worker

SECRET = "the vault opens to marzipan-4471-quartz"
TWIN = "the twin keeps pelican-9902-cobalt"


class Served:
    """A service with one redaction, and its receipt in a file."""

    def __init__(self, address: str, superuser_url: str, folder: Path) -> None:
        self.address = address
        self.superuser_url = superuser_url
        self.folder = folder
        self.receipt = folder / "receipt.json"
        self.text = folder / "text"
        self.text.write_text(f"{SECRET}\n")

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Returns exit code, output, and what was said beside it."""
        found = CliRunner().invoke(app, arguments)
        # As `main` prints them.
        if isinstance(found.exception, CommandError | palimpsest.PalimpsestError):
            return found.exit_code, found.stdout, f"{found.stderr}error: {found.exception}\n"
        assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
        return found.exit_code, found.stdout, found.stderr

    def asked(self, *arguments: str) -> tuple[int, str, str]:
        """Runs a command that calls the API."""
        return self.run(*arguments, "--address", self.address)

    def verified(self, receipt: Path, *arguments: str) -> tuple[int, str, str]:
        """Runs `erasure verify` beside no `up`."""
        nowhere = str(self.folder / "nowhere")
        return self.run("erasure", "verify", str(receipt), "--data-dir", nowhere, *arguments)


async def fill(address: str) -> None:
    async with palimpsest.connect(address) as client:
        await (await client.create_session("s")).append([SECRET, TWIN, "a third"])


@pytest.fixture(scope="module")
def served(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    url = servers.new_database()
    with api(url) as (_, address), worker(url), pytest.MonkeyPatch.context() as patched:
        for name in [one for one in os.environ if one.startswith("PALIMPSEST_")]:
            patched.delenv(name)
        asyncio.run(fill(address))
        found = Served(address, servers.as_superuser(url), tmp_path_factory.mktemp("erasures"))
        code, positions, said = found.asked("forget", "--session", "s", "--text", SECRET)
        assert (code, positions) == (0, "1\n"), said
        assert "redacted: 1 chunk\nkept out: 1 more text\n" in said
        code, listed, _ = found.asked("erasure", "list", "--json")
        assert code == 0
        (erasure,) = [json.loads(line) for line in listed.splitlines()]
        code, receipt, said = found.asked("erasure", "receipt", erasure["id"])
        assert code == 0, said
        found.receipt.write_text(receipt)
        yield found


def test_what_was_removed_is_shown_as_that(served: Served) -> None:
    code, shown, said = served.asked("session", "show", "s")
    assert code == 0, said
    assert "[1] (redacted)\n" in shown
    assert f"[2] {TWIN}\n" in shown
    code, _, said = served.asked("forget", "--session", "s", "--position", "0")
    assert code == 1
    assert "the first chunk of a session has position 1" in said


def test_forgetting_again_says_what_it_cannot_keep_out(served: Served) -> None:
    again = ("forget", "--session", "s", "--position", "1", "--keep-out")
    code, positions, said = served.asked(*again)
    assert (code, positions) == (0, "")
    assert "redacted: 0 chunks\nkept out: 0 more texts\n" in said
    assert "name what they said with --text" in said
    code, _, said = served.asked("forget", "--session", "s", "--text", "ab")
    assert (code, said.count("error: ")) == (1, 1)
    code, _, said = served.asked("forget", "--session", "s", "--position", "7-x")
    assert code == 1
    assert "is no position" in said
    code, _, said = served.asked("forget", "--session", "s", "--position", "1", "--thread", "t")
    assert code == 1
    assert "give one of" in said


async def edit(address: str, exported: Path) -> None:
    """Makes a session whose memory is edited by hand after a step, and a copy of it."""
    async with palimpsest.connect(address) as client:
        session = await client.create_session("edited")
        notes = await session.create_memory("notes", schema="class N:\n    facts: dict[str, str]\n")
        await session.append([SECRET])
        await session.flush()
        await notes.get(fully_applied=True, timeout=60)
        await notes.edit([palimpsest.Edit.put(f"$.facts['{SECRET}']", SECRET)])
        await session.export(exported)
        await client.import_session(exported, "copy")
        dry = await session.forget(positions=[1], dry_run=True, include_imports=True)
        (undone,) = dry.undone_edits
        assert (undone.memory, undone.kind, undone.paths) == ("notes", "edit", ("$['facts'][*]",))
        assert undone.revision == (await notes.get()).revision
        assert dry.undone_edit_count == 1
        assert [(one.session, one.undone_edit_count) for one in dry.imports] == [("copy", 1)]


def test_edits_that_are_undone_are_shown_without_content(served: Served) -> None:
    asyncio.run(edit(served.address, served.folder / "edited.jsonl"))
    wanted = ("forget", "--session", "edited", "--position", "1", "--include-imports")
    code, _, would = served.asked(*wanted, "--dry-run")
    assert code == 0, would
    code, _, said = served.asked(*wanted)
    assert code == 0, said
    assert "would be undone: 1 edit by hand;" in would
    assert "\nundone: 1 edit by hand;" in said
    for one in (would, said):
        assert "  edit of 'notes' at revision 2: $['facts'][*]\n" in one
        assert "undone there: 1 edit by hand\n" in one
        assert "marzipan" not in one


def test_what_is_kept_out_is_listed_and_let_in(served: Served) -> None:
    code, shown, said = served.asked("erasure", "kept-out", "-s", "s", "--json")
    assert code == 0, said
    first, *others = [json.loads(line) for line in shown.splitlines()]
    assert first["erasure"] in served.asked("erasure", "list")[1]
    code, shown, said = served.asked("erasure", "allow", first["id"], "-s", "s")
    assert code == 0, said
    assert shown == f"session s stores the text {first['id']} again when it is appended\n"
    code, shown, _ = served.asked("erasure", "kept-out", "-s", "s")
    assert first["id"] not in shown
    assert len(shown.splitlines()) == 1 + len(others)
    code, _, said = served.asked("erasure", "allow", first["id"], "-s", "s")
    assert code == 1
    assert "keeps out no text" in said


def test_a_list_names_the_erasure(served: Served) -> None:
    code, listed, _ = served.asked("erasure", "list")
    assert code == 0
    assert "chunks" in listed
    assert "done" in listed
    assert SECRET not in listed
    code, _, said = served.asked("erasure", "list", "--tenant", "nowhere")
    assert code == 1
    assert said.startswith("error: ")


@pytest.mark.parametrize("erasure", ["0b6f2f0e-3f0c-4b51-9a5e-0f6f3c1f7a10", "7", "a\tb"])
def test_a_receipt_of_no_erasure_is_an_error(served: Served, erasure: str) -> None:
    code, out, said = served.asked("erasure", "receipt", erasure)
    assert (code, out) == (1, "")
    assert said.count("error: ") == 1


def test_a_receipt_is_proved_by_a_scan(served: Served) -> None:
    code, out, said = served.verified(
        served.receipt, "--text", str(served.text), "--database", served.superuser_url
    )
    assert code == 0, out + said
    assert "pass  signature: chunks erased" in out
    assert "pass  database dump" in out
    # Its twin was never erased: the scan finds what is there.
    served.text.with_name("twin").write_text(TWIN)
    code, out, _ = served.verified(
        *(served.receipt, "--json", "--database", served.superuser_url),
        *("--text", str(served.text.with_name("twin"))),
    )
    assert code == 1
    places = [json.loads(line) for line in out.splitlines()]
    (dump,) = [one for one in places if one["place"] == "database dump"]
    assert dump["result"] == "fail"
    assert dump["left"]["chunk: the text as UTF-8"] == 1


def test_a_signature_alone_needs_no_database(served: Served) -> None:
    code, out, _ = served.verified(served.receipt, "--offline")
    assert (code, out.count("\n")) == (0, 1)
    found = CliRunner().invoke(
        app, ["erasure", "verify", "-", "--offline"], input=served.receipt.read_text()
    )
    assert found.exit_code == 0


def test_a_receipt_that_was_changed_is_refused(served: Served) -> None:
    changed = served.folder / "changed.json"
    whole = served.receipt.read_text()
    changed.write_text(whole.replace('"requested_by": "local"', '"requested_by": "other"'))
    assert changed.read_text() != whole
    code, out, said = served.verified(changed, "--offline")
    assert (code, out) == (1, "")
    assert "error: the receipt was changed" in said
    # Signed anew, by a key that is not the tenant's.
    changed.write_text(to_json(sign(from_json(whole).body, bytes(32))))
    assert served.verified(changed, "--offline")[0] == 0, "whose key it is, a database says"
    code, _, said = served.verified(changed, "--database", served.superuser_url)
    assert code == 1
    assert "error: the receipt is signed by another key than the tenant's" in said


@pytest.mark.parametrize("content", ["", "no JSON", "{}", "[1]", '{"receipt": {"version": 2}}'])
def test_a_file_that_is_no_receipt_is_refused(served: Served, content: str) -> None:
    file = served.folder / "wrong.json"
    file.write_text(content)
    code, out, said = served.verified(file, "--offline")
    assert (code, out) == (1, "")
    assert said.startswith("error: the receipt is not a receipt of an erasure")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--text", "{folder}/none"), "cannot read"),
        (("--text", "{folder}/bytes"), "is not UTF-8"),
        (("--text", "{folder}/short"), "a scan takes 6 to"),
        (("--dump", "{folder}/none"), "cannot read"),
        (("--dump", "{folder}/bytes"), "is not a whole plain one"),
        (("--text", "{folder}/text", "--folder", "{folder}/none"), "cannot read"),
        (("--text", "{folder}/text", "--folder", "{folder}/packed"), "cannot read"),
        (("--database", "no URL with pass=word"), "has no URL such as"),
        (("--database", "postgresql://127.0.0.1:1/none"), "cannot read the database"),
        (("--rewrite",), "--rewrite needs the URL of a superuser"),
    ],
    ids=lambda given: " ".join(given)[:60] if isinstance(given, tuple) else "",
)
def test_what_cannot_be_scanned_is_one_clear_error(
    served: Served, arguments: tuple[str, ...], says: str
) -> None:
    (served.folder / "bytes").write_bytes(b"PGDMP\xff\x00")
    (served.folder / "short").write_text("abc")
    (served.folder / "packed").mkdir(exist_ok=True)
    (served.folder / "packed" / "one.gz").write_bytes(b"\x1f\x8b\x08\x00")
    given = [one.format(folder=served.folder) for one in arguments]
    code, out, said = served.verified(served.receipt, *given)
    assert code == 1, out
    assert said.count("error: ") == 1
    assert says in said
    assert "pass=word" not in said
    assert not [line for line in out.splitlines()[1:] if line.startswith("pass")]


def test_a_receipt_that_is_not_there_is_an_error(served: Served) -> None:
    code, _, said = served.verified(served.folder / "none", "--offline")
    assert code == 1
    assert said.startswith("error: cannot read")
