"""Moves the memories of mem0 into sessions, then recalls and asks.

    python examples/from_mem0/from_mem0.py

With an export of your own, the command that it runs is enough:

    palimpsest import --from mem0 memories.json --session "user:{user}"
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from palimpsest.sync import Session, connect

#: With mem0 installed: {"results": [one for user in USERS
#:     for one in mem0.Memory().get_all(filters={"user_id": user})["results"]]}
EXPORT: dict[str, list[dict[str, Any]]] = {
    "results": [
        {
            "id": "f1a0",
            "memory": "Alice is allergic to peanuts",
            "user_id": "alice",
            "run_id": "dinner",
            "metadata": {"category": "health"},
            "created_at": "2026-03-01T18:00:00-07:00",
            "updated_at": None,
        },
        {
            "id": "f1a1",
            "memory": "Alice rows on the river on Saturdays",
            "user_id": "alice",
            "created_at": "2026-04-11T09:30:00-07:00",
        },
        {
            "id": "f1a2",
            "memory": "Ben owns a boat called Marta",
            "user_id": "ben",
            "agent_id": "travel",
            "created_at": "2026-05-02T12:00:00-07:00",
        },
    ]
}


def write_export(path: Path) -> None:
    """Writes what `get_all` of mem0 returns, as mem0 itself would be asked to."""
    path.write_text(json.dumps(EXPORT))


def migrate(path: Path, prefix: str) -> None:
    """Imports the file: each user becomes a session, and each record is stored once."""
    # Run it again with a later export: only what is new is stored.
    palimpsest = Path(sys.executable).with_name("palimpsest")
    sessions = ["--session", f"{prefix}:{{user}}"]
    subprocess.run([palimpsest, "import", "--from", "mem0", path, *sessions], check=True)


def show(session: Session, query: str) -> None:
    """Recalls what fits, and asks for an answer with its source."""
    # Without `fully_applied` it does not wait for the memory, and recalls the records themselves.
    known = session.recall(query, tokens=200, fully_applied=True)
    print(f"\n{session.id}: {query}\n{known}")
    answer = session.ask(query)
    print(f"answer: {answer.text}")
    for cited in answer.citations:
        print(f"  [{cited.position}] of {cited.occurred_at}, from {cited.source}: {cited.excerpt}")


def main() -> None:
    """Writes an export, imports it, and reads it."""
    parser = argparse.ArgumentParser(description="A migration from mem0.")
    parser.add_argument("--prefix", default="mem0", help="of the names of the sessions")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, connect() as client:
        path = Path(folder, "memories.json")
        write_export(path)
        migrate(path, given.prefix)
        show(client.session(f"{given.prefix}:alice"), "What is Alice allergic to?")
        show(client.session(f"{given.prefix}:ben"), "What does Ben own?")


if __name__ == "__main__":
    main()
