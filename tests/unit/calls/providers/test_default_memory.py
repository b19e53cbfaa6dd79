"""The default memory with every provider: its prompt is taken, and replies amend it."""

import json
from datetime import UTC, datetime

import pytest

from service.domain.log.chunks import Chunk, ChunkKind, LoggedChunk
from service.domain.prism import asking
from service.domain.prism.default_memory import SPEC, TASK
from service.domain.prism.memory import PrismMemory
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.llm.gateway.driver import drive
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import LitellmTransport
from tests.providers.scenarios import Turn
from tests.providers.server import PROVIDERS, Emulators

AT = datetime(2026, 11, 27, 9, 30, tzinfo=UTC)
#: Two steps of a conversation, and what a model notes of each.
STEPS = (
    (
        (
            ("user", "Hi! I'm Ana. I can't eat peanuts, and I start at the Bern clinic tomorrow."),
            ("assistant", "Welcome, Ana! Have you thought of trying almonds? I'll remind you."),
            ("user", "thanks :)"),
        ),
        (
            ("add", "$.'people'.'user'", '["The user is Ana."]'),
            ("add", "$.'preferences'.'food'", '["The user cannot eat peanuts."]'),
            ("add", "$.'events'.'2026-11-28'", '["The user starts at the clinic in Bern."]'),
        ),
    ),
    (
        (
            ("user", "The clinic moved my start to 1 December. Who pays for the uniform?"),
            ("assistant", "I do not know; ask the clinic."),
        ),
        (
            (
                "update",
                "$.'events'.'2026-11-28'",
                '["The user\'s start at the clinic in Bern was moved from here to 1 December."]',
            ),
            ("add", "$.'events'.'2026-12-01'[-]", "The user starts at the clinic in Bern."),
            (
                "add",
                "$.'open_questions'.'uniform'",
                '["The user asks who pays for the uniform."]',
            ),
        ),
    ),
)
KEPT = {
    "people": {"user": ["The user is Ana."]},
    "preferences": {"food": ["The user cannot eat peanuts."]},
    "events": {
        "2026-11-28": ["The user's start at the clinic in Bern was moved from here to 1 December."],
        "2026-12-01": ["The user starts at the clinic in Bern."],
    },
    "open_questions": {"uniform": ["The user asks who pays for the uniform."]},
}


def logged(position: int, role: str, text: str) -> LoggedChunk:
    chunk = Chunk(kind=ChunkKind.MESSAGE, role=role, text=text, occurred_at=AT)
    return LoggedChunk(
        position=position, producer_id="", producer_sequence=position, chunk=chunk, created_at=AT
    )


def reply(changes: tuple[tuple[str, str, str], ...], *, fenced: bool) -> str:
    named = [{"op": op, "path": path, "value": value} for op, path, value in changes]
    text = json.dumps({"changes": named})
    return f"```json\n{text}\n```" if fenced else text


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_conversation_is_kept(servers: Emulators, name: str) -> None:
    emulator = dict(servers.items())[name]
    end = emulator.endpoint()
    transport = LitellmTransport(end.config())
    memory, position = PrismMemory.create(SPEC.schema()), 0
    for number, (said, changes) in enumerate(STEPS, start=1):
        chunks = [logged(position + at, *one) for at, one in enumerate(said, start=1)]
        position += len(chunks)
        # What has no schema to hold it to is often fenced.
        emulator.script = [Turn(text=reply(changes, fenced=name == "ollama" and number == 2))]

        async def call(ask: object) -> ModelReply:
            assert isinstance(ask, ModelRequest)
            done = await transport.complete(ask, end.model, CallPlan(deployment=end.deployment))
            return ModelReply(text=done.text, model=done.model, end=done.end, said=done.said)

        revision = await drive(
            asking.revise_in_parts(
                SPEC,
                memory,
                [chunks],
                number=number,
                marker_key=b"key",
                rules=SPEC.rules(1 << 20),
                output_tokens=4096,
                most_tokens=8192,
            ),
            call,
        )
        assert revision.rejections == ()
        assert emulator.refusals == []
        assert "assistant: " in emulator.seen[-1].prompt
        assert TASK in emulator.seen[-1].prompt
        memory = memory.apply(number, revision.amendments)
    assert memory.value == KEPT
