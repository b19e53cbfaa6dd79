"""A redaction lists the changes by hand that it undoes, without their content."""

import json
from collections.abc import Sequence
from dataclasses import replace

from service.app.kinds import memories_of
from service.domain.prism.amendments import Op
from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.edit import Edit, Editor, Target
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.operations.redacting import RedactionRequest, RedactionResult, Redactor
from storage.engine.database import Database
from storage.log import erasures
from storage.log.selecting import Selection
from storage.memories.undone_edits import MAX_EDITS, MAX_PATH_CHARACTERS, MAX_PATHS
from tests.integration.operations.test_redaction import SECRET, TEXTS, create, stored_memory
from tests.integration.support.scripted import ITEM, MEMORY, SPEC, Script, prism_method
from tests.integration.support.writing import append_texts, drop_wake_ups

TARGET = Target(session="s", memory="m")
PEOPLE = replace(
    SPEC,
    schema_source=(
        "class Person:\n    phones: list[str]\n\n"
        "class N:\n    topics: dict[str, str]\n    people: dict[str, Person]\n    note: str\n"
    ),
)


def editor_of(database: Database) -> Editor:
    memories = memories_of(
        database, WakeUps(drop_wake_ups), ProgressWatcher(database), b"k", Limits()
    )
    return Editor(database, memories, Limits())


async def edit(database: Database, *changes: tuple[str, str]) -> int:
    edits = [Edit(op=None, path=path, value_json=value) for path, value in changes]
    stored, _ = await editor_of(database).revise(DEFAULT_TENANT, TARGET, edits)
    return stored.revision


async def forget(database: Database, *, dry_run: bool = False) -> RedactionResult:
    redactor = Redactor(database, WakeUps(drop_wake_ups), b"key", max_chunks=9)
    wanted = RedactionRequest(session="s", selection=Selection(text=SECRET), validate_only=dry_run)
    return await redactor.redact(DEFAULT_TENANT, wanted)


async def read(database: Database, texts: Sequence[str], first: int = 1) -> None:
    await append_texts(database, "s", texts, first=first)
    await prism_method(database, Script()).drain(ITEM)


async def test_edits_since_the_chunk_was_read_are_listed(database: Database) -> None:
    await create(database, PEOPLE)
    await read(database, TEXTS[:2])
    early = await edit(database, ("$.note", '"kept"'))
    await read(database, TEXTS[2:], first=3)
    first = await edit(
        database,
        (f"$.people['{SECRET}']", '{"phones": ["1"]}'),
        (f"$.people['{SECRET}'].phones[0]", f'"{SECRET}"'),
        (f"$.topics['{SECRET}']", f'"{SECRET}"'),
        (f"$.topics['{SECRET} too']", '"b"'),
        ("$.note", f'"{SECRET}"'),
    )
    removal = Edit(op=Op.REMOVE, path="$.note", value_json="")
    await editor_of(database).revise(DEFAULT_TENANT, TARGET, [removal])
    await editor_of(database).rollback(DEFAULT_TENANT, TARGET, early)
    before = await stored_memory(database)
    dry = await forget(database, dry_run=True)
    assert await stored_memory(database) == before
    done = await forget(database)
    assert dry.undone == done.undone
    assert done.undone.count == 3
    assert [(one.memory, one.revision, one.kind) for one in done.undone.listed] == [
        ("m", first, "edit"),
        ("m", first + 1, "edit"),
        ("m", first + 2, "rollback"),
    ]
    assert [one.paths for one in done.undone.listed] == [
        ["$['people'][*]", "$['people'][*]['phones'][*]", "$['topics'][*]", "$['note']"],
        ["$['note']"],
        [],
    ]
    assert SECRET not in repr(done.undone)
    async with database.transaction(DEFAULT_TENANT) as tx:
        (erasure,) = await erasures.list_after(tx, None, 9)
    assert erasure.detail["undone_edits"] == [
        {"memory": str(MEMORY), "revision": first + n} for n in range(3)
    ]
    assert erasure.detail["undone_edits_before"] == 0
    assert SECRET not in json.dumps(dict(erasure.detail))


async def test_nothing_is_listed_twice_and_nothing_where_nothing_is_undone(
    database: Database,
) -> None:
    await create(database, SPEC)
    await read(database, TEXTS)
    await edit(database, ("$.topics.a", '"b"'))
    assert (await forget(database)).undone.count == 1
    await read(database, [f"the {SECRET} again"], first=len(TEXTS) + 1)
    second = await forget(database)
    assert list(second.positions) == [len(TEXTS) + 1]
    assert second.undone.count == 0
    async with database.transaction(DEFAULT_TENANT) as tx:
        _, last = await erasures.list_after(tx, None, 9)
    assert "undone_edits" not in last.detail


async def test_the_newest_are_listed_and_all_are_counted(database: Database) -> None:
    await create(database, SPEC)
    await read(database, TEXTS)
    first = await edit(database, ("$.topics.last", '"first"'))
    for n in range(MAX_EDITS - 1):
        await edit(database, ("$.topics.last", f'"{n}"'))
    many = [(f"$.topics.k{n}", '"v"') for n in range(MAX_PATHS + 1)]
    last = await edit(database, (f"$.topics['{'x' * MAX_PATH_CHARACTERS}']", '"v"'), *many)
    undone = (await forget(database, dry_run=True)).undone
    assert undone.count == MAX_EDITS + 1
    revisions = [one.revision for one in undone.listed]
    assert revisions == [*range(first + 1, last + 1)]
    assert undone.listed[-1].paths == ["$", "$['topics'][*]"]
    assert undone.detail()["undone_edits_before"] == 1
    assert (await forget(database)).undone == undone
