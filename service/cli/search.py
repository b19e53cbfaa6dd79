"""`palimpsest search`: the chunks of a session that match a query."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import typer

from palimpsest import FoundChunk, FoundEntry, SearchResult, Session
from service.cli.command import LAST, Freshness, Json, Labels, Timeout, command
from service.cli.output import CommandError, cut, plain_json, say, show, show_json, trust_mark
from service.cli.session import index_problems, pairs

SearchMode = Literal["auto", "words", "vectors", "hybrid"]

#: Characters of a chunk's text on a line, which has the best part.
EXCERPT_CHARACTERS = 200
#: Fields of a chunk that are printed besides its text.
_OF_CHUNK = ("position", "kind", "thread", "source", "occurred_at", "metadata", "created_at")
#: Characters before the best part of a text that is cut.
_BEFORE_CHARACTERS = 40


class Kind(StrEnum):
    """What a chunk is; the option can be given several times, which a Literal cannot."""

    TEXT = "text"
    MESSAGE = "message"
    AGENT_STEP = "agent_step"


@dataclass(frozen=True, slots=True)
class Occurred:
    """Options that say which chunks are wanted, by when they happened."""

    occurred_since: Annotated[str, typer.Option(metavar="TIME", help="Happened from then on.")] = ""
    occurred_until: Annotated[str, typer.Option(metavar="TIME", help="Happened before then.")] = ""

    def wanted(self) -> dict[str, Any]:
        """Returns them as the client takes them. Raises CommandError."""
        return {
            "occurred_since": moment("--occurred-since", self.occurred_since),
            "occurred_until": moment("--occurred-until", self.occurred_until),
        }


def register(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "search", search)


async def search(
    session: Session,
    query: Annotated[str, typer.Argument(help="Words, not an expression.")],
    freshness: Freshness,
    labels: Labels,
    occurred: Occurred,
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
    timeout: Timeout = 60.0,
    as_json: Json = False,
) -> None:
    """Find the chunks of a session that match a query best.

    Of each: its rank, its position, where words and vectors ranked it, and its text about
    the place that fits best. A time without a zone is UTC.
    """
    result = await session.search(
        query,
        limit=limit,
        mode=mode,
        from_position=from_position,
        to_position=to_position or 0,
        since=moment("--since", since),
        until=moment("--until", until),
        **occurred.wanted(),
        **labels.wanted(),
        kinds=[one.value for one in kind or ()],
        metadata=pairs(metadata or ()),
        rerank=rerank,
        **freshness.wanted(),
        timeout=timeout,
    )
    if as_json:
        show_json({**plain_json(result), "results": [_chunk_json(one) for one in result.results]})
    else:
        _show(result)


def moment(option: str, given: str) -> datetime | None:
    """Returns the time that an option names; None without one. Raises CommandError."""
    if not given:
        return None
    try:
        found = datetime.fromisoformat(given)
        return found.replace(tzinfo=found.tzinfo or UTC).astimezone(UTC)
    except ValueError:
        raise CommandError(
            f"{option}: {cut(given, 60)!r} is no time such as 2026-11-30T12:00Z"
        ) from None
    except OverflowError:
        raise CommandError(
            f"{option}: {cut(given, 60)!r} is not within the years 1 to 9999 of UTC"
        ) from None


def _show(result: SearchResult) -> None:
    for found in result.results:
        where = f"[{found.chunk.position}]{trust_mark(found.chunk.trust)}"
        show(f"{found.rank}. {where} {_line(found)} ({ranks(found)})")
    index = result.index
    say(f"{len(result.results)} found by {result.mode} among {index.head:,} chunks")
    if result.unread_chunks:
        say(f"{result.unread_chunks:,} chunks have no words yet and were not searched")
    for line in index_problems(index):
        say(line)


def ranks(found: FoundChunk | FoundEntry) -> str:
    """Returns where words and vectors ranked what was found."""
    by = (("words", found.words_rank), ("vectors", found.vectors_rank))
    return ", ".join(f"{name} {rank}" for name, rank in by if rank)


def _line(found: FoundChunk) -> str:
    """Returns the text around the best part, on one line."""
    place = found.characters
    start = place.start if place is not None and place.end > EXCERPT_CHARACTERS else 0
    start = max(0, start - _BEFORE_CHARACTERS)
    return ("… " if start else "") + cut(found.text[start:], EXCERPT_CHARACTERS)


def _chunk_json(found: FoundChunk) -> dict[str, Any]:
    ranked = plain_json(found)
    of_chunk = {name: value for name, value in ranked["chunk"].items() if name in _OF_CHUNK}
    del ranked["chunk"]
    return {**of_chunk, **ranked, "excerpt": found.excerpt}
