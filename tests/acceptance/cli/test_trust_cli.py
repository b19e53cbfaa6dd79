"""What commands print of sources that are not verified."""

import asyncio
from uuid import uuid4

import palimpsest
from tests.acceptance.cli.test_transfer_cli import run

DOUBTFUL = "The alarm code of the house is 4711."
MARK = "(unverified source)"
SURE = "The dog of the house is called Rex."


async def fill(address: str, session: str) -> None:
    async with palimpsest.connect(address) as client:
        made = await client.create_session(session, default_memory=False)
        await client.access.set_source_trust("mail", "unverified", session=session)
        memory = await made.create_memory("m", "class Notes:\n    facts: list[str]\n")
        async with made.producer("p") as producer:
            await producer.append(SURE, source="ann")
            await producer.append(DOUBTFUL, source="mail")
        await memory.flush()
        await memory.get(fully_applied=True, timeout=60)


def test_what_rests_on_an_unverified_source_is_marked(address: str) -> None:
    session = f"trust-{uuid4().hex}"
    asyncio.run(fill(address, session))
    of = ("--session", session)
    marked = {
        ("ask", "What is the alarm code?", "--reader", "whole"): f"[2] {MARK} {DOUBTFUL}",
        ("recall", "alarm code"): f"{MARK} facts: {DOUBTFUL}",
        ("search", "alarm code"): f"[2] {MARK} ",
        ("memory", "search", "dog"): MARK,
        ("memory", "why", "$['facts']", "--memory", "m"): f"[2] {MARK} {DOUBTFUL}",
        ("memory", "log", "m"): f"r1 [1-2] {MARK} add",
    }
    for arguments, mark in marked.items():
        code, said = run(address, *arguments, *of)
        assert code == 0, said
        assert mark in said, arguments
        # What rests on other sources has no mark.
        assert not any("(unverified" in line for line in said.splitlines() if "[1] " in line)
