"""`palimpsest memory search`: the entries of a session's memories that match a query."""

from typing import Annotated

import typer

from palimpsest import FoundEntry, MemorySearchResult, Session
from service.cli.command import LAST, Freshness, Json, Labels, Timeout, command
from service.cli.output import cut, plain_json, range_text, say, show, show_json, trust_mark
from service.cli.search import EXCERPT_CHARACTERS, Occurred, SearchMode, ranks


def register(memory: typer.Typer) -> None:
    """Adds the command."""
    command(memory, "search", search)


async def search(
    session: Session,
    query: Annotated[str, typer.Argument(help="Words, not an expression.")],
    freshness: Freshness,
    labels: Labels,
    occurred: Occurred,
    memories: Annotated[
        list[str] | None,
        typer.Option("--memory", "-m", help="Only this memory; may be repeated."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Entries at most.")] = 10,
    mode: Annotated[
        SearchMode, typer.Option(help="By what; auto: by both where vectors can be searched.")
    ] = "auto",
    path: Annotated[str, typer.Option(help="Only what is at this path or below it.")] = "",
    from_position: Annotated[
        int, typer.Option("--from", min=0, max=LAST, help="Only what rests on chunks from here on.")
    ] = 0,
    to_position: Annotated[
        int, typer.Option("--to", min=0, max=LAST, help="Only what rests on chunks up to here.")
    ] = 0,
    timeout: Timeout = 60.0,
    as_json: Json = False,
) -> None:
    """Find the entries of a session's memories that match a query best.

    Of each: its rank, its memory, revision, path and text, the chunks that it rests on, and where
    words and vectors ranked it. Filters of chunks keep what rests on a chunk that they match.
    """
    result = await session.search_memories(
        query,
        limit=limit,
        mode=mode,
        memories=memories or (),
        path_prefix=path,
        from_position=from_position,
        to_position=to_position,
        **occurred.wanted(),
        **labels.wanted(),
        **freshness.wanted(),
        timeout=timeout,
    )
    if as_json:
        show_json(plain_json(result))
        return
    for found in result.results:
        show(_line(found))
    _summary(result)


def _line(found: FoundEntry) -> str:
    entry = found.entry
    where = f"{entry.memory} r{entry.revision} {entry.path}{trust_mark(entry.trust)}"
    read = range_text(entry.positions)
    parts = (cut(entry.text, EXCERPT_CHARACTERS), read, f"({ranks(found)})")
    return f"{found.rank}. {where}: {' '.join(filter(None, parts))}"


def _summary(result: MemorySearchResult) -> None:
    say(f"{len(result.results)} found by {result.mode} in {len(result.memories)} memories")
    for one in result.memories:
        if one.behind:
            revision = one.read_point.revision
            say(
                f"{one.memory}: only revisions up to {revision} were searched; a worker adds others"
            )
    if result.failure:
        say(result.failure)
