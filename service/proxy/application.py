"""The proxy itself: an ASGI application between a client and its provider."""

import asyncio
import contextlib
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import httpx
import structlog
from palimpsest_hook.queue import Entry, Queue, QueueFull
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

import palimpsest
from service.domain.spend.prices import ModelPrices
from service.proxy.budget import Budget, OverBudget
from service.proxy.conversation import (
    CHAT,
    Conversation,
    Form,
    conversation_of,
    form_of,
    provider_of,
)
from service.proxy.open_calls import CallsInProgress, OpenCalls
from service.proxy.passing import CallEnd, Passing
from service.proxy.replies import Reply, ReplyReader
from service.proxy.spending import Purse
from service.proxy.turns import step_messages

_log = structlog.get_logger("palimpsest.proxy")

#: Bytes of a request.
MAX_REQUEST_BYTES = 32 * 1024 * 1024
#: Levels of its JSON that are read: what is nested deeper is left to the provider to refuse.
MAX_LEVELS = 100
#: How long a prompt waits for what is recalled.
RECALL_SECONDS = 1.0
#: How much of that it waits for turns that are on their way to the service.
DELIVERED_SECONDS = 0.5
#: Messages whose recalled text is kept: calls of tools send them again, with the same bytes.
KEPT_MESSAGES = 10_000
#: How long calls of tools wait for their results, before they are remembered without.
OPEN_SECONDS = 600.0
#: Connections to providers at once; each call under way has one.
MAX_CALLS = 1000
#: A provider may think for so long before the next byte.
SILENT_SECONDS = 600.0
CONNECT_SECONDS = 10.0
SESSION_HEADER = "x-palimpsest-session"
THREAD_HEADER = "x-palimpsest-thread"
#: Says how many tokens were recalled, or why nothing was.
RECALLED_HEADER = "x-palimpsest-recalled"

#: Headers that belong to one connection, or that the proxy sets itself.
_CONNECTION = frozenset(
    {
        *(
            "connection",
            "keep-alive",
            "proxy-authenticate",
            "proxy-authorization",
            "proxy-connection",
        ),
        *("te", "trailer", "transfer-encoding", "upgrade", "date"),
    }
)
_OWN = _CONNECTION | {"host", "content-length", "expect", SESSION_HEADER, THREAD_HEADER}


@dataclass(frozen=True, kw_only=True)
class Addressed:
    """What a request belongs to, and where it goes."""

    path: str
    provider: str
    session: str
    thread: str


class Proxy:
    """Recalls before each call of a model, and remembers after it."""

    def __init__(
        self,
        *,
        client: palimpsest.Client,
        upstreams: Mapping[str, str],
        session: str,
        queue: Queue,
        calls: CallsInProgress,
        tokens: int,
        hosts: frozenset[str],
        prices: Callable[[str], ModelPrices],
        budget: Budget | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`upstreams`: the URL of each provider by its form's name; `session`: the default one."""
        self._client = client
        self._upstreams = upstreams
        self._session = session
        self._queue = queue
        self._tokens = tokens
        self._hosts = hosts
        self._purse = Purse(budget, prices) if budget else None
        #: What calls leave to do after their last byte.
        self._ends: set[asyncio.Task[None]] = set()
        self._recalled: OrderedDict[str, str] = OrderedDict()
        self._http = httpx.AsyncClient(
            transport=transport,
            timeout=httpx.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=MAX_CALLS),
            follow_redirects=False,
        )
        #: The threads of replies that requests can go on from.
        self._threads: OrderedDict[str, str] = OrderedDict()
        self._calls = calls
        #: Set when something waits to be delivered.
        self.wake = asyncio.Event()
        #: Set while nothing does; None: nothing says so.
        self.delivered: asyncio.Event | None = None

    async def close(self) -> None:
        """Closes the connections to providers, after what calls have left to do."""
        await self.finish_calls()
        await self._http.aclose()

    async def finish_calls(self) -> None:
        """Waits until the calls that have ended are charged and remembered."""
        if self._ends:
            # An end that failed says so itself, and fails no other call.
            await asyncio.wait(self._ends)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves a request, as ASGI has it."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self._serve(request)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _serve(self, request: Request) -> Response:
        addressed = self._addressed(request)
        form = form_of(addressed.path)
        host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
        if host not in self._hosts or "origin" in request.headers:
            # A page in a browser must not read the memory by way of this proxy.
            return _refused(form, 403, "the proxy serves programs of this machine, not web pages")
        if not addressed.path.startswith("/"):
            # Behind the provider's name it would be another: https://api.openai.com@host/.
            return _refused(None, 400, "the request's target is no path: send /v1/…")
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_REQUEST_BYTES:
                limit = MAX_REQUEST_BYTES
                return _refused(form, 413, f"the request has more than {limit} bytes")
        given = _object(bytes(body)) if form and request.method == "POST" else None
        if form is None or given is None:
            if form and request.method == "POST" and self._purse is not None:
                return _refused(
                    form, 400, "what this request costs cannot be read: send plain JSON"
                )
            return await self._forward(request, addressed, bytes(body))
        talk = conversation_of(form, given)
        return await self._with_memory(request, addressed, talk)

    async def _with_memory(
        self, request: Request, addressed: Addressed, talk: Conversation
    ) -> Response:
        thread = addressed.thread or self._threads.get(talk.continues) or talk.thread
        # What the last call said comes before what this one says.
        await self.finish_calls()
        known, said = await self._known(addressed.session, thread, talk)
        body = talk.with_memory(known)
        spending = None
        if self._purse is not None:
            if talk.form is CHAT and talk.is_streamed:
                # Without it OpenAI does not say what a streamed reply cost.
                body["stream_options"] = {
                    **(body.get("stream_options") or {}),
                    "include_usage": True,
                }
            try:
                spending = await self._purse.reserve(talk, body)
            except OverBudget as error:
                return _refused(talk.form, 402, str(error), "budget_exceeded")
        await self._remember_request(addressed.session, thread, talk)
        reader = ReplyReader(talk.form, streamed=talk.is_streamed)

        async def finish(end: CallEnd) -> None:
            reader.close()
            reply = reader.reply
            if not end.was_refused and reply.is_complete:
                await self._remember_reply(addressed.session, thread, talk, reply)
            if self._purse is not None and spending is not None:
                if end.was_refused:
                    await self._purse.release(spending)
                else:
                    await self._purse.charge(spending, reply, was_cut=end.was_cut)

        headers = {RECALLED_HEADER: said}
        return await self._forward(
            request, addressed, json.dumps(body).encode(), finish, reader, headers
        )

    async def _known(self, session: str, thread: str, talk: Conversation) -> tuple[str, str]:
        """Returns what the session knows, and how many tokens it has or why it is nothing."""
        if not talk.text or not self._tokens:
            return "", "0"
        name = f"{session}\0{thread}\0{talk.digest}"
        if name not in self._recalled:
            begun = time.monotonic()
            if self.delivered is not None:
                # What a program hears is recalled for what it says at once after it.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.delivered.wait(), DELIVERED_SECONDS)
            try:
                found = await self._client.session(session).recall(
                    talk.text,
                    tokens=self._tokens,
                    excluded_threads=[thread],
                    timeout=max(begun + RECALL_SECONDS - time.monotonic(), RECALL_SECONDS / 2),
                )
            except (palimpsest.PalimpsestError, ValueError) as error:
                _log.warning("nothing is recalled", reason=type(error).__name__)
                return "", f"unavailable ({type(error).__name__})"
            self._recalled[name] = str(found)
            while len(self._recalled) > KEPT_MESSAGES:
                self._recalled.popitem(last=False)
        self._recalled.move_to_end(name)
        known = self._recalled[name]
        return known, str(-(-len(known.encode()) // 4))

    async def remember_open_calls(self) -> None:
        """Remembers calls whose results did not come in time: some are a program's last answer."""
        for made in self._calls.expired(time.time() - OPEN_SECONDS):
            if made.uses:
                messages = step_messages(made.thought, made.uses, [])
                name = " ".join(one.id for one in made.uses)
                await self._remember(made.session, made.thread, "calls", name, messages)
            await self._change(self._calls.give_up, made)

    async def _change(self, change: Callable[[OpenCalls], None], made: OpenCalls) -> None:
        try:
            await asyncio.to_thread(change, made)
        except OSError as error:
            _log.error("calls are known until the proxy stops only", reason=str(error))

    async def _remember_request(self, session: str, thread: str, talk: Conversation) -> None:
        """Remembers what is new: results of tools with their calls, and words of the user."""
        if talk.outputs:
            made = self._calls.find(session, thread, [one.id for one in talk.outputs])
            thought, uses = (made.thought, made.uses) if made else (talk.thought, talk.uses)
            messages = step_messages(thought, uses, talk.outputs)
            await self._remember(session, thread, "step", talk.whole, messages)
            if made is not None:
                await self._change(self._calls.remove, made)
        for text, digest in talk.said:
            await self._remember(session, thread, "user", digest, [_message("user", text)])

    async def _remember_reply(
        self, session: str, thread: str, talk: Conversation, reply: Reply
    ) -> None:
        """Remembers what the model said; its calls when their results come."""
        text = reply.text.strip()
        if reply.id:
            self._threads[reply.id] = thread
            while len(self._threads) > KEPT_MESSAGES:
                self._threads.popitem(last=False)
        if reply.uses:
            made = OpenCalls(
                session=session,
                thread=thread,
                ids=[one.id for one in reply.uses],
                thought=text,
                uses=reply.uses,
                since=time.time(),
            )
            await self._change(self._calls.add, made)
        elif text:
            name = f"{talk.digest} {text}"
            await self._remember(session, thread, "assistant", name, [_message("assistant", text)])

    async def _remember(
        self,
        session: str,
        thread: str,
        kind: str,
        name: str,
        messages: Sequence[Mapping[str, Any]],
    ) -> None:
        """Queues a turn on disk; it is stored once, however often a client sends it again."""
        entry = Entry(
            session=session,
            thread=thread,
            source="",
            role=kind,
            text="",
            request_id=_request_id(session, thread, kind, name),
            said_at=time.time(),
            messages=messages,
        )
        try:
            await asyncio.to_thread(self._queue.add, entry)
        except (QueueFull, OSError) as error:
            _log.error("a turn is not remembered", reason=str(error))
        if self.delivered is not None:
            self.delivered.clear()
        self.wake.set()

    async def _forward(
        self,
        request: Request,
        addressed: Addressed,
        content: bytes,
        finish: Callable[[CallEnd], Awaitable[None]] | None = None,
        reader: ReplyReader | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        """Sends the request on, and passes the reply through as it comes."""
        name = addressed.provider
        given = [(k, v) for k, v in request.headers.items() if k not in _OWN]
        if reader is not None:
            # A compressed reply could not be read on its way.
            given = [(k, v) for k, v in given if k != "accept-encoding"]
            given.append(("accept-encoding", "identity"))
        query = request.scope["query_string"].decode("latin-1")
        sent = self._http.build_request(
            request.method,
            self._upstreams[name].rstrip("/") + addressed.path + (f"?{query}" if query else ""),
            content=content,
            headers=given,
        )
        try:
            response = await self._answered(request, sent)
        except httpx.TransportError as error:
            unsent = isinstance(
                error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
            )
            self._end(finish, CallEnd(was_refused=unsent, was_cut=True))
            url, kind = self._upstreams[name], type(error).__name__
            said = f"{name}'s API does not answer ({kind}): is {url} right, and reachable?"
            return _refused(form_of(addressed.path), 502, said)
        except (ClientDisconnect, asyncio.CancelledError):
            self._end(finish, CallEnd(was_refused=False, was_cut=True))
            raise
        kept = [(k, v) for k, v in response.headers.multi_items() if k not in _CONNECTION]
        if "content-encoding" in response.headers:
            reader = None

        def ended(was_cut: bool) -> None:
            end = CallEnd(was_refused=response.status_code >= 400, was_cut=was_cut)
            self._end(finish, end, response)

        return Passing(response, [*kept, *headers.items()], reader, ended)

    async def _answered(self, request: Request, sent: httpx.Request) -> httpx.Response:
        """Returns the beginning of the reply. A client that leaves takes its call along."""
        leaving = asyncio.create_task(_left(request))
        sending = asyncio.create_task(self._http.send(sent, stream=True))
        try:
            await asyncio.wait((leaving, sending), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise ClientDisconnect
            return sending.result()
        finally:
            leaving.cancel()
            sending.cancel()

    def _end(
        self,
        finish: Callable[[CallEnd], Awaitable[None]] | None,
        end: CallEnd,
        response: httpx.Response | None = None,
    ) -> None:
        """Ends a call in a task of its own: a client that leaves cancels that of its request."""

        async def run() -> None:
            if response is not None:
                await response.aclose()
            if finish is not None:
                await finish(end)

        task = asyncio.create_task(run())
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    def _addressed(self, request: Request) -> Addressed:
        """Returns the session and thread of the headers, else of the path, else the default."""
        path = request.scope.get("raw_path", b"").decode("latin-1") or request.url.path
        session, thread = self._session, ""
        for mark in ("s", "t"):
            parts = path.split("/", 3)
            if len(parts) == 4 and parts[1] == mark:
                if mark == "s":
                    session = unquote(parts[2])
                else:
                    thread = unquote(parts[2])
                path = f"/{parts[3]}"
        return Addressed(
            path=path,
            provider=provider_of(path, request.headers),
            session=request.headers.get(SESSION_HEADER) or session,
            thread=request.headers.get(THREAD_HEADER) or thread,
        )


async def _left(request: Request) -> None:
    """Returns when the client leaves; all of its request has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _request_id(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and _is_flat(value) else None


def _is_flat(value: Any) -> bool:
    """Returns whether a value has at most MAX_LEVELS levels."""
    level = [value]
    for _ in range(MAX_LEVELS):
        parts = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for part in parts for one in part if isinstance(one, dict | list)]
        if not level:
            return True
    return False


def _refused(form: Form | None, status: int, message: str, kind: str = "palimpsest") -> Response:
    """Returns an error in the form of the provider, so that its client can read it."""
    error = {"type": kind, "message": f"palimpsest proxy: {message}"}
    if form is not None and form.name == "anthropic":
        return JSONResponse({"type": "error", "error": error}, status)
    return JSONResponse({"error": {**error, "code": kind, "param": None}}, status)
