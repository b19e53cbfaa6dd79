"""Core 4: chunks with all the metadata that they may have make a log unreadable."""

import palimpsest
from tests.support.harness import api
from verification.attacks.attack import Attack, Outcome, Stage

CHUNKS, SHORT_CHUNKS = 3000, 300
#: One of each width in UTF-8.
CHARACTERS = ("a", "é", "漢", "\U0001f6a2")
PAIRS, VALUE = 16, 1024


async def _attack(stage: Stage) -> Outcome:
    count = SHORT_CHUNKS if stage.short else CHUNKS
    unread: list[str] = []
    with api(stage.servers.new_database()) as (_, address):
        for character in CHARACTERS:
            metadata = {f"key {number}": character * VALUE for number in range(PAIRS)}
            async with palimpsest.connect(address) as client:
                session = await client.create_session(f"fat-{ord(character)}")
                try:
                    async with session.producer("p") as producer:
                        for number in range(count):
                            await producer.append(f"zebra {number}", metadata=metadata)
                    read = [one.position async for one in session.chunks()]
                    found = await session.search("zebra", limit=100)
                    if read != [*range(1, count + 1)] or not found.results:
                        unread.append(f"{character!r}: {len(read)} of {count}")
                except palimpsest.PalimpsestError as error:
                    unread.append(f"{character!r}: {error}")
    return Outcome(
        held=not unread,
        found="; ".join(unread) or f"all of {len(CHARACTERS)} logs of {count} chunks was read",
    )


ATTACK = Attack(
    name="fat_metadata",
    finding="core 4",
    summary="logs of chunks with 16 x 1,024 characters of metadata, of one to four bytes each",
    goal="the official client writes, reads and searches all of them",
    before="RESOURCE_EXHAUSTED 'Sent message larger than max', for ever",
    run=_attack,
)
