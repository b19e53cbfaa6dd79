"""Commands for searching a session's log."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

import palimpsest
from palimpsest import FoundChunk, SearchIndex, SearchResult
from palimpsest.search_values import SearchMode
from service.cli.output import CommandError, cut, say, show, show_json
from service.cli.talk import DAY, DEFAULT_ADDRESS, LAST, Address, Json, run

#: Of a chunk's text on a line, in characters; the part that fits best is in it.
EXCERPT_CHARACTERS = 200
#: What stands before the part that fits best, when a text is cut, in characters.
_BEFORE_CHARACTERS = 40


class Kind(StrEnum):
    """`palimpsest.search_values.ChunkKind`, of which the command line can take several."""

    TEXT = "text"
    MESSAGE = "message"
    STEP = "step"


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("search")(search)
    app.command("search-index")(search_index)


def search(
    session: Annotated[str, typer.Argument(help="The session.")],
    query: Annotated[str, typer.Argument(help="Words, not an expression.")],
    limit: Annotated[int, typer.Option(min=1, max=100, help="Chunks at most.")] = 10,
    mode: Annotated[
        SearchMode, typer.Option(help="By what; auto: by both where vectors can be searched.")
    ] = "auto",
    from_position: Annotated[
        int, typer.Option("--from", min=1, max=LAST, help="The first position.")
    ] = 1,
    to_position: Annotated[
        int | None, typer.Option("--to", min=1, max=LAST, help="The last position.")
    ] = None,
    since: Annotated[
        str,
        typer.Option(metavar="TIME", help="Committed from then on, such as 2026-11-30T12:00Z."),
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Committed before then.")] = "",
    kind: Annotated[
        list[Kind] | None, typer.Option(help="Chunks of this kind; may be repeated.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Chunks with this; may be repeated."),
    ] = None,
    rerank: Annotated[bool, typer.Option("--rerank", help="A model orders the best.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, max=DAY, help="Seconds to wait.")] = 60.0,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Find the chunks of a session that fit a query best.

    Of each: its rank, its position, where words and vectors ranked it, and its text about
    the place that fits best. A time without a zone is UTC.
    """
    begin, end = _moment("--since", since), _moment("--until", until)
    pairs = _pairs(metadata or ())

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            result = await client.session(session).search(
                query,
                limit=limit,
                mode=mode,
                from_position=from_position,
                to_position=to_position or 0,
                since=begin,
                until=end,
                kinds=[one.value for one in kind or ()],
                metadata=pairs,
                rerank=rerank,
                timeout=timeout,
            )
        if as_json:
            show_json(result_json(result))
        else:
            _show(result)

    run(work())


def search_index(
    session: Annotated[str, typer.Argument(help="The session.")],
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    """Say how far words and vectors of a session are."""

    async def work() -> None:
        async with palimpsest.connect(address) as client:
            index = await client.session(session).search_index()
        if as_json:
            show_json(index_json(index))
            return
        show(f"{index.head:,} chunks, language {index.language}")
        show(f"words:   {index.indexed_position:,} of {index.head:,}")
        model = f" ({index.embedding_model})" if index.embedding_model else ""
        show(f"vectors: {index.embedded_position:,} of {index.head:,}{model}")
        for line in _trouble(index):
            show(line)

    run(work())


def _moment(option: str, given: str) -> datetime | None:
    if not given:
        return None
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise CommandError(
            f"{option}: {cut(given, 60)!r} is no time such as 2026-11-30T12:00Z"
        ) from None
    return found.replace(tzinfo=found.tzinfo or UTC)


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals:
            raise CommandError(f"--metadata: {cut(one, 60)!r} has no =")
        if pairs.setdefault(key, value) != value:
            raise CommandError(f"--metadata: {cut(key, 60)!r} has two values")
    return pairs


def _show(result: SearchResult) -> None:
    for found in result.chunks:
        by = [
            f"{name} {rank}"
            for name, rank in (("words", found.words_rank), ("vectors", found.vectors_rank))
            if rank
        ]
        show(f"{found.rank}. [{found.chunk.position}] {_line(found)} ({', '.join(by)})")
    index = result.index
    say(f"{len(result.chunks)} found by {result.mode} among {index.head:,} chunks")
    if result.unread_chunks:
        say(f"{result.unread_chunks:,} chunks have no words yet and were not searched")
    for line in _trouble(index):
        say(line)


def _trouble(index: SearchIndex) -> list[str]:
    lines: list[str] = []
    if index.vectors_unavailable:
        lines.append(f"no search by vectors: {index.vectors_unavailable}")
    if index.failure:
        lines.append(f"failed: {index.failure}")
    return lines


def _line(found: FoundChunk) -> str:
    """The text about the place that fits best, on one line."""
    start = found.from_character if found.to_character > EXCERPT_CHARACTERS else 0
    start = max(0, start - _BEFORE_CHARACTERS)
    return ("… " if start else "") + cut(found.text[start:], EXCERPT_CHARACTERS)


def result_json(result: SearchResult) -> dict[str, Any]:
    """A result as plain JSON."""
    return {
        "mode": result.mode,
        "index": index_json(result.index),
        "unread_chunks": result.unread_chunks,
        "chunks": [
            {
                "rank": found.rank,
                "position": found.chunk.position,
                "kind": found.chunk.kind,
                "text": found.text,
                "excerpt": found.excerpt,
                "from_character": found.from_character,
                "to_character": found.to_character,
                "score": found.score,
                "words_rank": found.words_rank,
                "vectors_rank": found.vectors_rank,
                "words_score": found.words_score,
                "vectors_score": found.vectors_score,
                "metadata": found.chunk.metadata,
                "created_at": found.chunk.created_at.isoformat(),
            }
            for found in result.chunks
        ],
    }


def index_json(index: SearchIndex) -> dict[str, Any]:
    """How far the index is, as plain JSON."""
    return {
        "head": index.head,
        "indexed_position": index.indexed_position,
        "embedded_position": index.embedded_position,
        "language": index.language,
        "embedding_model": index.embedding_model,
        "vectors_unavailable": index.vectors_unavailable,
        "failure": index.failure,
    }
