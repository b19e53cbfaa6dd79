"""`palimpsest-hook` (and `palimpsest hook`): what an agent runs at each event."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest_hook.delivery import Undelivered, deliver, described, start_delivery
from palimpsest_hook.events import (
    AGENTS,
    EVENTS,
    MAX_EVENT_BYTES,
    Agent,
    BadEvent,
    Event,
    answer,
    folder_of,
    lost_its_thread,
    parsed,
    thread_of,
    turn_of,
)
from palimpsest_hook.queue import Entry, Queue, QueueFull
from palimpsest_hook.settings import Settings, session_of

if TYPE_CHECKING:
    from argparse import ArgumentParser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command. An event never fails: without memory, the agent works as it did before."""
    begin = time.monotonic()
    if found := _event_of(sys.argv[1:] if arguments is None else arguments):
        _event(*found, begin)
    options = _parser().parse_args(arguments)
    if options.command in EVENTS:
        _event(options.command, options.agent, begin)
    if options.command in ("session", "mcp"):
        _here(options.command)
        return
    try:
        settings = Settings.of(os.environ)
        queue = Queue(settings.queue)
        if options.command == "flush":
            sys.exit(_flush(queue, refused=options.refused, quiet=options.quiet))
        print(f"{described(queue)}\nservice: {settings.http_url}\nqueue: {settings.queue}")
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def _event_of(arguments: Sequence[str]) -> tuple[Event, Agent] | None:
    """Returns the event and the agent of a plugin's command, without loading a parser."""
    for kind in EVENTS:
        for agent in AGENTS:
            if list(arguments) == [kind, "--agent", agent]:
                return kind, agent
    return None


def _event(kind: Event, agent: Agent, begin: float) -> None:
    """Queues what is said, answers the agent, and ends the process."""
    context = warning = ""
    waits = False
    try:
        settings = Settings.of(os.environ)
        event = parsed(sys.stdin.buffer.read(MAX_EVENT_BYTES + 1))
        if settings.enabled:
            queue = Queue(settings.queue)
            context, warning = _handled(settings, queue, kind, agent, event, begin)
            waits = bool(queue.waiting())
    except (BadEvent, QueueFull, ValueError, OSError) as error:
        warning = f"Palimpsest: {error}"
    if text := answer(agent, kind, context, warning):
        print(text)
    if warning:
        print(warning, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    if waits:
        # Last, so that its start does not compete with what the agent waits for.
        start_delivery()
    # At once: a call that did not end in time must not delay the agent.
    os._exit(0)


def _handled(
    settings: Settings,
    queue: Queue,
    kind: Event,
    agent: Agent,
    event: Mapping[str, Any],
    begin: float,
) -> tuple[str, str]:
    """Returns the context and a warning."""
    session = session_of(folder_of(agent, event), os.environ)
    turn = turn_of(agent, kind, event) if kind != "session-start" else None
    warning = ""
    if turn is not None:
        entry = Entry(
            session=session,
            thread=turn.thread,
            source=agent if turn.role == "assistant" else "",
            role=turn.role,
            text=turn.text,
            request_id=turn.request_id,
            said_at=time.time(),
        )
        try:
            queue.add(entry)
        except (QueueFull, OSError) as error:
            warning = f"Palimpsest does not remember this turn: {error}"
    recalls = kind == "session-start" or (turn is not None and kind == "prompt")
    if not recalls or not settings.tokens or (agent == "cursor" and kind == "prompt"):
        return "", warning
    # A reply recalls nothing, and needs no network.
    from palimpsest_hook.recalling import recalled

    context = recalled(
        settings.http_url,
        session,
        query=turn.text if turn else "",
        thread="" if lost_its_thread(event) else thread_of(agent, event),
        tokens=settings.tokens,
        seconds=max(0.01, settings.seconds - (time.monotonic() - begin)),
        environment=os.environ,
    )
    return context, warning


def _here(command: str) -> None:
    """Prints the session of this folder, or becomes its MCP server."""
    session = session_of(Path.cwd(), os.environ)
    if command == "session":
        print(session)
        return
    try:
        os.execvp("palimpsest", ["palimpsest", "mcp", "--session", session])  # noqa: S606
    except OSError as error:
        sys.exit(f"error: palimpsest does not start ({error}): install palimpsest-server beside it")


def _flush(queue: Queue, *, refused: bool, quiet: bool) -> int:
    if refused:
        queue.retry_refused()
    try:
        # When it ends nothing waits that the service takes, whichever process delivered it.
        done = deliver(queue, wait=not quiet)
    except Undelivered as error:
        if not quiet:
            print(f"error: {error}\n{described(queue)}", file=sys.stderr)
        return 1
    if not quiet:
        print(f"{done} turn(s) are remembered\n{described(queue)}")
    return 0


def _parser() -> "ArgumentParser":
    import argparse

    parser = argparse.ArgumentParser(
        prog="palimpsest-hook",
        description="Captures the turns of coding agents: docs/guides/hooks.md",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    said = {
        "session-start": "recall the newest of the repository (stdin: the event as JSON)",
        "prompt": "remember the prompt, and recall what fits it (stdin: the event as JSON)",
        "reply": "remember the agent's reply (stdin: the event as JSON)",
    }
    for name in EVENTS:
        one = commands.add_parser(name, help=said[name])
        one.add_argument("--agent", choices=AGENTS, default="claude-code")
    flush = commands.add_parser("flush", help="deliver what waits, until it is acked")
    flush.add_argument("--refused", action="store_true", help="also what was refused before")
    flush.add_argument("--quiet", action="store_true", help="print nothing")
    commands.add_parser("session", help="print the session of this folder")
    commands.add_parser("mcp", help="serve the memory of this folder's session (palimpsest mcp)")
    commands.add_parser("status", help="show what waits, and what was refused and why")
    return parser
