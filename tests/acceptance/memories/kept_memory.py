"""A PRISM memory `m` of a session `s`, kept by workers whose model is a fake one."""

import threading

import palimpsest
from tests.support.fake_model import FakeModel
from tests.support.sending import send

SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"
#: Of reads that come too early. The service keeps a tenth of it to answer with the reason
#: before the client gives up, half a second at most: a busy machine needs all of that.
DEADLINE_SECONDS = 5.0
#: Short, so that a dead worker is noticed while a test waits.
QUICK = {
    "PALIMPSEST_HEARTBEAT_SECONDS": "0.5",
    "PALIMPSEST_DEAD_AFTER_SECONDS": "2",
    "PALIMPSEST_SWEEP_SECONDS": "0.5",
    "PALIMPSEST_RECONCILE_SECONDS": "0.5",
}


class HeldReplies:
    """Holds each reply of a model back until all may go."""

    def __init__(self, model: FakeModel) -> None:
        #: Whether the model was asked, and whether it may reply.
        self.asked = threading.Event()
        self.go = threading.Event()
        self._reply = model.reply
        model.reply = self.reply

    def reply(self, number: int) -> str:
        """Returns what the model says to the n-th prompt, once it may."""
        self.asked.set()
        assert self.go.wait(200)
        return self._reply(number)


def scripted(model: FakeModel) -> dict[str, str]:
    """Returns the environment of a worker with that model."""
    return {
        **QUICK,
        **model.settings,
        # Longer than any test holds a reply back: another try would be another payment.
        "PALIMPSEST_MODEL_TIMEOUT_SECONDS": "600",
    }


async def start(address: str, texts: list[str]) -> tuple[palimpsest.Memory, str]:
    """Makes both, with these chunks, which are read one by one; the token of the last."""
    async with palimpsest.connect(address) as client:
        session = await client.create_session("s")
        await session.create_memory(
            "m", schema_source=SCHEMA, chunk_tokens=1, encoding="amendments"
        )
        token = await send(session, *texts, producer_id="p")
    return session.memory("m"), token


async def finish(address: str, token: str) -> tuple[int, int, list[tuple[int, int]]]:
    """Revision, position and the ranges of the amendments, once all is applied."""
    async with palimpsest.connect(address) as client:
        memory = client.session("s").memory("m")
        state = await memory.get(after=token, timeout=200)
        ranges = [
            (one.positions.first - 1, one.positions.last)
            async for one in memory.amendments()
            if one.positions is not None
        ]
    return state.revision, state.applied_position, ranges
