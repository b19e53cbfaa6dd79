"""What the processes of a replay run do: the model, the caller, and the worker that dies."""

import asyncio
import hashlib
import json
import os
import signal
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from service.caller.client import RemoteCaller
from service.caller.server import CallerServer
from service.caller.wire import frame, order_to_json
from service.config import Config
from service.domain.flows import ModelAsk, ModelReply
from service.domain.ledger import Busy, Call, CallScope, Lease, Reservation
from service.domain.warmth import Sent
from service.domain.work import WorkItem
from service.llm.caller import Caller
from service.llm.facts import Facts
from service.llm.gateway import Gateway
from service.llm.plans import PLAIN, CallOrder, Plan
from service.llm.prices import Prices
from service.llm.routing import Router
from service.llm.transport import Completion, LitellmTransport
from service.usecases.journal import Journal
from service.usecases.revise import Reviser
from storage import journal, revisions
from storage.database import Database
from storage.prefix_index import NullPrefixIndex, RedisPrefixIndex
from storage.revisions import NewRevision
from tests.chaos.points import Point, Trap

#: How long the model takes; kills at any time hit this often.
MODEL_SECONDS = 0.01
LEASE_SECONDS = 0.6
#: How long a call stands still where its worker was killed: longer than the lease, and than
#: the next worker needs until it wants the same call.
HOLD_SECONDS = 1.0


def model(at: socket.socket, paid: Path, trap: Trap) -> None:
    """An OpenAI-compatible server: what it is asked it writes down, and that is paid."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = json.dumps(request["messages"])
            with paid.open("a") as file:
                file.write(hashlib.sha256(prompt.encode()).hexdigest() + "\n")
            if trap.spring(Point.AT_PROVIDER):
                time.sleep(HOLD_SECONDS)
            # The newest chunk is one word; it becomes a topic.
            word = prompt.rsplit("<<<data ", 1)[1].split("\\n")[1]
            text = f'[OBJECTS FOR ADD]\n{{"$.topics.{word}": {{"add": "seen"}}}}'
            body = json.dumps(_completion(request["model"], text)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Keeps quiet."""

    server = ThreadingHTTPServer(at.getsockname(), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = at
    server.serve_forever()


def _completion(name: str, text: str) -> dict[str, Any]:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text},
    }
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": name,
        "choices": [choice],
        "usage": usage,
    }


def caller(config: Config, path: Path, lost: Path, trap: Trap, redis_url: str) -> None:
    """A caller that several workers share, and that kills them at its steps.

    The leases that it lost to others while it had a call under way it writes to `lost`.
    """

    class TrappedTransport(LitellmTransport):
        async def complete(self, ask: ModelAsk, model: str, plan: Plan = PLAIN) -> Completion:
            done = await super().complete(ask, model, plan)
            await asyncio.sleep(MODEL_SECONDS)
            if trap.spring(Point.REPLIED):
                await asyncio.sleep(HOLD_SECONDS)
            return done

    class TrappedJournal(Journal):
        async def _stored(self, outcome: journal.Outcome) -> journal.Recorded:
            recorded = await super()._stored(outcome)
            if not recorded.was_held:
                with lost.open("a") as file:
                    file.write(f"{outcome.call.key.hex()} {outcome.lease.fence}\n")
            return recorded

        async def record(
            self, scope: CallScope, call: Call, lease: Lease, *, last: bool
        ) -> ModelReply | None:
            if trap.wants(Point.REPLY_UNCOMMITTED):
                # Without the end of its intent, which would be locked and not renewed.
                outcome = journal.Outcome(scope=scope, call=call, lease=lease, is_last=False)
                async with self._database.direct(scope.tenant_id) as tx:
                    await tx.begin(journal.recording(tx, (outcome,)))
                    trap.spring(Point.REPLY_UNCOMMITTED)
                    await asyncio.sleep(HOLD_SECONDS)
            reply = await super().record(scope, call, lease, last=last)
            if trap.spring(Point.REPLY_STORED):
                await asyncio.sleep(HOLD_SECONDS)
            return reply

    class TrappedIndex(RedisPrefixIndex):
        async def sent(self, prompt: Sent) -> None:
            await super().sent(prompt)
            trap.spring(Point.COPIED)

    async def serve() -> None:
        assert config.database_url is not None
        database = Database.connect(
            config.database_url.get_secret_value(), pool_size=5, name="caller"
        )
        transport = TrappedTransport(config)
        await transport.warm()
        made = Caller(
            transport,
            TrappedJournal(database, lease_seconds=LEASE_SECONDS),
            TrappedIndex(redis_url),
            prices=Prices(config).of,
            tries=1,
            lease_seconds=LEASE_SECONDS,
        )
        await CallerServer(made).listen(path, asyncio.Event(), lambda: None)

    asyncio.run(serve())


def worker(config: Config, path: Path, trap: Trap, items: list[WorkItem]) -> None:
    """Brings memories to the head, and dies where the trap is."""
    trap.enter()

    class TrappedJournal(Journal):
        async def begin(
            self, scope: CallScope, key: bytes, wanted: Reservation
        ) -> ModelReply | Busy | Lease:
            trap.spring(Point.BEFORE_INTENT)
            if trap.wants(Point.INTENT_UNCOMMITTED):
                intent = journal.Wanted(scope=scope, key=key, reservation=wanted)
                async with self._database.direct(scope.tenant_id) as tx:
                    await journal.begin(tx, (intent,), LEASE_SECONDS)
                    trap.spring(Point.INTENT_UNCOMMITTED)
            begun = await super().begin(scope, key, wanted)
            if isinstance(begun, Lease):
                trap.spring(Point.INTENT_COMMITTED)
            return begun

    class TrappedCaller(RemoteCaller):
        async def make(self, order: CallOrder) -> ModelReply:
            if trap.wants(Point.ORDER_HALF_SENT):
                raw = frame({"id": 0, "order": order_to_json(order)})
                writer = await self._connected()
                writer.write(raw[: len(raw) // 2])
                await writer.drain()
                trap.spring(Point.ORDER_HALF_SENT)
            making = asyncio.create_task(super().make(order))
            await asyncio.sleep(0.001)
            trap.spring(Point.ORDER_SENT)
            reply = await making
            trap.spring(Point.REPLY_RECEIVED)
            return reply

    commit = revisions.commit_revision

    async def trapped_commit(*arguments: Any, **named: Any) -> bool:
        has_work = await commit(*arguments, **named)
        trap.spring(Point.APPLY_UNCOMMITTED)
        return has_work

    class TrappedReviser(Reviser):
        async def _commit(self, state: Any, new: NewRevision, *, may_rest: bool) -> bool:
            has_work = await super()._commit(state, new, may_rest=may_rest)
            trap.spring(Point.APPLIED)
            return has_work

    async def drain() -> None:
        assert config.database_url is not None
        database = Database.connect(
            config.database_url.get_secret_value(), pool_size=4, name="worker"
        )
        prices = Prices(config)
        gateway = Gateway(
            TrappedJournal(database, lease_seconds=LEASE_SECONDS),
            Router((), NullPrefixIndex(), prices.of),
            TrappedCaller(path, stop_seconds=1),
            prices=prices.of,
            lease_seconds=LEASE_SECONDS,
        )
        reviser = TrappedReviser(database, gateway, Facts(config).of, prices.of, b"marker", config)
        await asyncio.gather(*(reviser.drain(item) for item in items))

    revisions.commit_revision = trapped_commit
    asyncio.run(drain())


def forked(body: Any, *arguments: Any) -> int:
    """Runs `body` in a process of its own, which shares what is imported; its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        body(*arguments)
        os._exit(0)
    except BaseException as error:
        # Whatever it is, this process must not go on as its parent.
        print(f"{body.__name__}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
