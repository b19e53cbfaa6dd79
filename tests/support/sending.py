"""Sending chunks to a service by its client."""

from uuid import uuid4

import palimpsest


async def send(session: palimpsest.Session, *texts: str, producer_id: str = "") -> str:
    """Appends texts by a producer, of their own if none is named; the token of the last one."""
    async with session.producer(producer_id or f"p-{uuid4().hex}") as producer:
        for text in texts:
            await producer.append(text)
        ack = await producer.flush()
    assert ack is not None
    return ack.read_token
