"""Messages that are no protobuf, to every method."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from grpc import aio

import palimpsest
from palimpsest import _errors
from service.rpc import pipeline
from tests.support.harness import api
from tests.support.stream_status import raise_status
from verification.attacks.attack import Attack, Outcome, Stage

#: A length beyond the end, a group that does not end, and a varint without an end.
_MALFORMED = (b"\x0a\xff", b"\x0b", b"\x08" + b"\xff" * 11)
_SECONDS = 60


async def _run(stage: Stage) -> Outcome:
    messages = _MALFORMED[:1] if stage.short else _MALFORMED
    ends: Counter[str] = Counter()
    with api(stage.servers.new_database()) as (process, address):
        async with palimpsest.connect(address) as client:
            await client.create_session("s")
            for method in _methods():
                for message in messages:
                    ends[await _refusal(client.channel, method, message)] += 1
            answered = (await client.session("s").info()).head == 0
        traced = process.log().count("Traceback")
    held = answered and traced == 0 and set(ends) == {"INVALID_ARGUMENT REQUEST_MALFORMED"}
    return Outcome(held=held, found=f"{dict(ends)}; {traced} tracebacks in the server's log")


def _methods() -> Sequence[MethodDescriptor]:
    descriptors = [descriptor for _, descriptor in pipeline.REGISTER.values()]
    return [method for descriptor in descriptors for method in descriptor.methods]


async def _refusal(channel: aio.Channel, method: MethodDescriptor, message: bytes) -> str:
    """Returns how a call with the message ended: its code, and the reason or gRPC's words."""
    # On the wire all four kinds of calls are streams.
    opened: Any = channel.stream_stream(f"/{method.containing_service.full_name}/{method.name}")
    call = opened(timeout=_SECONDS)
    try:
        await call.write(message)
        await call.done_writing()
        if await call.read() is not aio.EOF:
            return "answered"
        await raise_status(call)
    except aio.AioRpcError as error:
        known = _errors.from_rpc(error, "")
        return f"{error.code().name} {known.reason or str(known)[:80]}"


ATTACK = Attack(
    name="malformed_messages",
    finding="core 19",
    summary="sends every method bytes that are no protobuf",
    goal="INVALID_ARGUMENT with REQUEST_MALFORMED, and nothing in the log",
    before="UNKNOWN with the words of a Python exception, a traceback each, counted nowhere",
    run=_run,
)
