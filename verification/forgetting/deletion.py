"""The thirteen-step deletion test of the Agent Memory Atlas (benchmarks, section 6).

A distinctive fact is written, deleted, fed again, and searched for after every background job: in
what clients read, and in every table by name. A twin that was never deleted must stay everywhere.
The result is a matrix of artefacts and steps. No model judges: it compares bytes.
"""

import json
import subprocess
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import palimpsest
from service.domain.operations.encodings import needles
from service.local.binaries import find_postgres

#: Single words, so that lists of words have them as they are.
FACT, TWIN = "quillaja7741", "marasmius2209"
PARTS: tuple[tuple[str, ...], ...] = (
    (
        "The harbour opens at six in the morning, and closes late.",
        f"The password of the north gate is {TWIN}, says Ann.",
        "Nothing else happened on Monday, but for the rain in the evening.",
    ),
    (
        f"The password of the south gate is {FACT}, says Ben.",
        "On Tuesday the ferry was late again, by half an hour.",
        "The gates are painted green, and the boats are blue.",
        "On Wednesday the market had fresh fish and old bread.",
        "The keeper of the harbour is called Joris, since last year.",
    ),
)
SCHEMA = "class Notes:\n    facts: dict[str, str]\n"
QUESTION = "What is the password of the {} gate?"

#: Artefacts by name, and the tables that have them.
ARTEFACTS: Mapping[str, Collection[str]] = {
    "log": ("chunk", "producer"),
    "words of chunks": ("chunk_word", "posting_list", "posting_block"),
    "entries of memories": ("memory_entry",),
    "PRISM values, bases, snapshots": ("prism_value", "prism_base", "prism_snapshot"),
    "amendments, rejections": ("amendment", "rejection"),
    "nodes of trees": ("tree_node",),
    "state vectors": ("state_vector", "state_levels"),
    "ledger of model calls": ("call", "intent"),
    "answers, trajectories": ("answer", "answer_text", "answer_rating", "trajectory_event"),
    "other tables": (),
}
#: What clients read.
SURFACES = ("chunks", "search", "recall", "search of memories", "memory", "answer")
STEPS = ("2 before", "4 deleted", "6 fed again", "8 every job run")


#: Deletes the fact from a session.
Delete = Callable[[palimpsest.Session], Awaitable[None]]


@dataclass
class Deployment:
    """What a run needs."""

    client: palimpsest.Client
    #: The URL of the superuser.
    database_url: str
    delete: Delete


@dataclass
class Matrix:
    """Where the fact was found at each step, and the twin at the last one."""

    fact: dict[str, list[str]] = field(default_factory=dict)
    twin: set[str] = field(default_factory=set)

    def add(self, step: str, found: Collection[str]) -> None:
        """Adds the artefacts that have the fact at a step."""
        self.fact[step] = sorted(found)

    def rows(self) -> list[tuple[str, ...]]:
        """Returns a row for each artefact: how it was at each step, the twin, and the verdict."""
        rows = []
        for name in (*SURFACES, *ARTEFACTS):
            cells = ["there" if name in self.fact[step] else "gone" for step in STEPS]
            was_there, twin = cells[0] == "there", name in self.twin
            passed = set(cells[1:]) == {"gone"} and (twin or not was_there)
            shown = cells if was_there else ["never", *cells[1:]]
            rows.append((name, *shown, "there" if twin else "never", _verdict(passed)))
        return rows


def _verdict(passed: bool) -> str:
    return "pass" if passed else "FAIL"


async def fill(client: palimpsest.Client, name: str) -> palimpsest.Session:
    """Makes a session with all kinds of memories that have read both facts (step 1)."""
    session = await client.create_session(name, default_memory=False)
    notes = await session.create_memory("notes", schema_source=SCHEMA)
    await session.create_tree("tree", segment_tokens=64)
    await session.create_state("state", task="Remember the passwords.", period=2)
    # Each fact also by hand, since the offline model writes none of them into this memory.
    for number, gate, value in ((0, "north", TWIN), (1, "south", FACT)):
        await session.append(PARTS[number], request_id=f"source-{number}")
        await applied(session)
        if any(value in text for text in PARTS[number]):
            await notes.edit([palimpsest.Edit.put(f"$.facts['{gate}']", value)])
        await session.ask(QUESTION.format(gate), timeout=120)
    return session


async def applied(session: palimpsest.Session) -> None:
    """Waits until all memories have read the log, and the index has its words."""
    await session.flush()
    for info in await session.memories():
        await session.memory(info.id).get(fully_applied=True, timeout=120)
    await session.search("harbour", fully_applied=True, timeout=120)


async def surfaces(session: palimpsest.Session, value: str, gate: str) -> set[str]:
    """Returns where clients of a session can read a value; nowhere without the session."""
    try:
        return await _surfaces(session, value, gate)
    except palimpsest.NotFound:
        return set()


async def _surfaces(session: palimpsest.Session, value: str, gate: str) -> set[str]:
    entries = (await session.search_memories(value)).results
    found = {
        "chunks": [one.text async for one in session.chunks()],
        "search": [one.chunk.text for one in (await session.search(value)).results],
        "recall": [(await session.recall(QUESTION.format(gate), tokens=800)).text],
        "search of memories": [one.entry.value for one in entries],
        "memory": [json.dumps((await session.memory("notes").get()).value)],
        "answer": [(await session.ask(QUESTION.format(gate), timeout=120)).text],
    }
    async for stored in session.answers():
        if stored.query == QUESTION.format(gate):
            found["answer"].append(stored.text)
    return {name for name, texts in found.items() if any(value in text for text in texts)}


def artefacts(database_url: str, value: str) -> set[str]:
    """Returns which artefacts in a dump of the database have a value, in any encoding."""
    program = str(find_postgres() / "pg_dump")
    command = [program, f"--dbname={database_url}", "--format=plain"]
    dump = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    wanted, table, found = needles(value), "", set()
    for line in dump.lower().splitlines():
        if line.startswith(b"copy public."):
            table = line[12:].split(b" ")[0].decode()
        elif line == b"\\.":
            table = ""
        elif any(needle.lower() in line for needle in wanted):
            names = [name for name, tables in ARTEFACTS.items() if table in tables]
            found.add(names[0] if names else "other tables")
    return found


async def run(
    deployment: Deployment, session: palimpsest.Session, twin: palimpsest.Session
) -> Matrix:
    """Runs steps 2 to 9 on a session from `fill`; `twin` is one that keeps the other fact."""
    matrix = Matrix()

    async def look(step: str) -> None:
        found = await surfaces(session, FACT, "south")
        matrix.add(step, found | artefacts(deployment.database_url, FACT))

    await look(STEPS[0])
    await deployment.delete(session)
    await look(STEPS[1])
    for again in (feed, every_job):
        # A session that is deleted takes nothing.
        with suppress(palimpsest.NotFound):
            await again(session)
        await look(STEPS[2] if again is feed else STEPS[3])
    matrix.twin = await surfaces(twin, TWIN, "north")
    matrix.twin |= artefacts(deployment.database_url, TWIN)
    return matrix


async def feed(session: palimpsest.Session) -> None:
    """Sends the source again: the same request, as a client does that lost the reply."""
    for number, part in enumerate(PARTS):
        await session.append(part, request_id=f"source-{number}")
    await applied(session)


async def every_job(session: palimpsest.Session) -> None:
    """Runs every background job: folding, consolidation, rebuild, sealing, indexing."""
    await applied(session)
    notes = session.memory("notes")
    operation = await notes.consolidate()
    await operation.wait(timeout=120)
    rebuilt = await notes.rebuild("rebuilt")
    await rebuilt.wait(timeout=120)
    await applied(session)


def table(rows: list[tuple[str, ...]], head: tuple[str, ...]) -> str:
    """Returns rows as a table of Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def has(path: Path, value: str) -> bool:
    """Returns whether a file of text has a value."""
    return value in path.read_text()


def restore(database_url: str, dump: Path) -> None:
    """Restores a dump in the custom format to an empty database."""
    program = str(find_postgres() / "pg_restore")
    subprocess.run(
        [program, f"--dbname={database_url}", "--exit-on-error", str(dump)],
        check=True,
        capture_output=True,
        timeout=120,
    )
