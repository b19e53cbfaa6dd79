"""Processes that append to one session at once, for tests and attacks.

`python -m tests.support.append_processes ADDRESS SESSION NAME MESSAGES MODE` is one of them.
In MODE "producer" it is a producer named "app", as all of them are, and says `open` and waits for a
line before it sends; in "append" it calls `session.append`. Its last line says what was acked.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import palimpsest
from service.local.processes import free_port
from tests.support.harness import Process

#: How long a process tries, over whatever happens to the service.
TRY_SECONDS = 400.0
#: A process may begin while the service is away.
REACH_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Responses:
    """The responses to one process."""

    #: The texts that are durable, with their positions where it got them.
    acked: dict[str, int | None]
    #: Why it ended early; empty when it did not.
    error: str


async def _send(address: str, session: str, name: str, messages: int, mode: str) -> Responses:
    texts = [f"{name}: message {number}" for number in range(messages)]
    async with palimpsest.connect(address, reach_seconds=REACH_SECONDS) as client:
        held = client.session(session)
        if mode == "append":
            acks = [(text, await held.append(text, timeout=TRY_SECONDS)) for text in texts]
            return Responses(acked={text: ack.positions.last for text, ack in acks}, error="")
        producer = held.producer("app", give_up_seconds=TRY_SECONDS)
        await producer.__aenter__()
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        first = producer.last_acked_sequence + 1
        error = ""
        try:
            for text in texts:
                await producer.append(text)
                await producer.flush()
            await producer.__aexit__(None, None, None)
        except palimpsest.PalimpsestError as refusal:
            error = f"{refusal.reason}: {refusal}"
            await producer.__aexit__(None, None, None)
        durable = texts[: producer.last_acked_sequence + 1 - first]
        return Responses(acked=dict.fromkeys(durable), error=error)


async def append_together(
    address: str, session: str, *, processes: int, messages: int, mode: str, first: int = 0
) -> Sequence[Responses]:
    """Runs so many processes, each with so many messages; returns what each got.

    They are numbered from `first` on, which their messages begin with.
    """
    spawned = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.append_processes", address, session),
            *(f"process {number}", str(messages), mode),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for number in range(first, first + processes)
    ]
    try:
        if mode == "producer":
            # All of them are open before any of them sends.
            for process in spawned:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"open\n"
        ends = await asyncio.gather(*(process.communicate(b"go\n") for process in spawned))
    finally:
        for process in spawned:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return [Responses(**json.loads(out.splitlines()[-1])) for out, _ in ends]


async def texts_of(address: str, session: str) -> list[str]:
    """Returns the log, in order."""
    async with palimpsest.connect(address, reach_seconds=REACH_SECONDS) as client:
        return [chunk.text async for chunk in client.session(session).chunks()]


def wrong_with(log: Sequence[str], responses: Sequence[Responses]) -> list[str]:
    """Returns how the log differs from what the processes got: lost, twice, or elsewhere."""
    counts = Counter(log)
    wrong = [f"{text!r} is there {count} times" for text, count in counts.items() if count > 1]
    for one in responses:
        for text, position in one.acked.items():
            if text not in counts:
                wrong.append(f"{text!r} was acked and is not there")
            elif position is not None and log[position - 1] != text:
                wrong.append(f"{text!r} was acked at position {position} and is not there")
    return wrong


async def append_while_killed(
    url: str, session: str, *, processes: int, messages: int, kills: int
) -> tuple[Sequence[Responses], list[str]]:
    """Appends as `append_together`, by `session.append`, while the API is killed so often.

    It is killed whenever another part of the messages is in the log, and started again at the
    same address. Returns what the processes got, and the log.
    """
    address = f"127.0.0.1:{free_port()}"
    servers = [_served(url, address)]
    try:
        async with palimpsest.connect(address, reach_seconds=REACH_SECONDS) as client:
            held = await client.create_session(session)
            sending = asyncio.create_task(
                append_together(
                    address, session, processes=processes, messages=messages, mode="append"
                )
            )
            try:
                for number in range(1, kills + 1):
                    due = processes * messages * number // (kills + 1)
                    while (await held.info()).head < due and not sending.done():
                        await asyncio.sleep(0.005)
                    await asyncio.to_thread(servers[-1].kill)
                    servers.append(await asyncio.to_thread(_served, url, address))
                responses = await sending
            finally:
                sending.cancel()
        return responses, await texts_of(address, session)
    finally:
        for server in servers:
            server.close()


def _served(url: str, address: str) -> Process:
    settings = {"PALIMPSEST_DATABASE_URL": url, "PALIMPSEST_LISTEN": address}
    return Process("serve", settings, "listening on")


if __name__ == "__main__":
    _address, _session, _name, _messages, _mode = sys.argv[1:]
    _told = asyncio.run(_send(_address, _session, _name, int(_messages), _mode))
    print(json.dumps({"acked": _told.acked, "error": _told.error}), flush=True)
