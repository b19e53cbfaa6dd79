"""Streams a log into a session, survives a crash, and asks about it at the end.

A producer numbers its chunks, and the service keeps the last number that is on disk. A
program that died continues after it: nothing is missing, and nothing is there twice.

    python examples/log_stream/log_stream.py --crash-after 120
    python examples/log_stream/log_stream.py
"""

import argparse
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

from palimpsest.sync import Session, connect

SCHEMA = '''
class Incidents:
    services: dict[str, list[str]]
    """What failed in each service, and when it recovered."""
'''
#: After so many lines it waits until they are on disk.
CHECKPOINT_LINES = 100
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
SERVICES = ("billing", "search", "login")
#: What is of interest among the lines, by number.
EVENTS = {
    57: "The billing service lost its database because the disk was full.",
    93: "The billing service recovered after old files were removed.",
    188: "The search service was restarted with more memory.",
}


def log_lines(count: int) -> Iterator[tuple[datetime, str]]:
    """Yields lines as a file or a queue would: always the same ones in the same order."""
    for number in range(1, count + 1):
        service = SERVICES[number % len(SERVICES)]
        quiet = f"{service} answered {100 + number % 7} requests."
        yield BEGIN + timedelta(minutes=number), EVENTS.get(number, quiet)


def stream(session: Session, count: int, crash_after: int | None) -> None:
    """Sends all lines that are not durable yet, in batches that the client makes."""
    # One name for each stream: two live processes never share one.
    with session.producer("log-2026-11") as producer:
        done = producer.last_acked_sequence
        print(f"{done} lines are durable, continuing with line {done + 1}")
        for number, (when, line) in enumerate(islice(log_lines(count), done, None), done + 1):
            producer.append(line, occurred_at=when)
            if number % CHECKPOINT_LINES == 0:
                # From here on the source may forget them.
                producer.flush()
                print(f"{producer.last_acked_sequence} lines are durable")
            if number == crash_after:
                # As `kill -9` would: nothing is flushed, and nothing is closed.
                print(f"crashing after line {number}", flush=True)
                os._exit(1)
        # Leaving the block waits for the rest.


def check(session: Session, count: int) -> None:
    """Compares the session with the log: each line once, in order."""
    stored = [chunk.text for chunk in session.chunks()]
    assert stored == [line for _, line in log_lines(count)], "a line is missing, or there twice"
    print(f"{len(stored)} lines in the session, each once and in order")


def main() -> None:
    """Streams, checks and asks."""
    parser = argparse.ArgumentParser(description="A log that is streamed into a session.")
    parser.add_argument("--session", default="log-stream")
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--crash-after", type=int, metavar="LINE", help="die there, on purpose")
    given = parser.parse_args()
    with connect() as client:
        session = client.create_session(given.session, exist_ok=True)
        memory = session.create_memory("incidents", SCHEMA, exist_ok=True)
        stream(session, given.lines, given.crash_after)
        check(session, given.lines)
        for query in ("Why did billing lose its database?", "What was restarted?"):
            # Waits until the memory has read the whole log.
            answer = memory.ask(query, fully_applied=True)
            print(f"\nQ: {query}\n{answer.text}")
            for cited in answer.citations:
                print(f"  line {cited.position}, {cited.occurred_at}")


if __name__ == "__main__":
    main()
