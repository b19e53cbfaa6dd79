"""The server: every provider at a path of its own, and what each was asked.

    with emulators() as providers:
        end = providers.endpoint("anthropic")
        providers["anthropic"].script = [Scenario.LENGTH_EMPTY, Turn(text="A ship.")]
        transport = LitellmTransport(end.config())
        await transport.complete(ask, end.model, Plan(deployment=end.deployment))

A process gets `end.variables`. What is
not scripted `answer` says, from the prompt: see `tests.support.fake_model` for
prompts by their marks.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.providers.anthropic import Anthropic
from tests.providers.azure import Azure
from tests.providers.bedrock import Bedrock
from tests.providers.deepseek import DeepSeek
from tests.providers.exchange import Invalid, Request, Response
from tests.providers.gemini import Gemini
from tests.providers.groq import Groq
from tests.providers.mistral import Mistral
from tests.providers.ollama import Ollama
from tests.providers.openai import OpenAi
from tests.providers.openrouter import OpenRouter
from tests.providers.provider import Endpoint, Provider
from tests.providers.scenarios import Scenario, Turn
from tests.providers.vllm import Vllm
from tests.providers.xai import Xai
from tests.support.fake_model import POLL_SECONDS

PROVIDERS: Mapping[str, type[Provider]] = {
    one.name: one
    for one in (
        OpenAi,
        Azure,
        Anthropic,
        Gemini,
        Bedrock,
        DeepSeek,
        Mistral,
        Groq,
        OpenRouter,
        Vllm,
        Ollama,
        Xai,
    )
}

#: What a model says when a test does not care.
REPLY = "The harbour museum is a ship."


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A request, and what became of it."""

    request: Request
    #: The text of all messages; empty when it was not read so far.
    prompt: str = ""
    #: None when it was refused.
    turn: Turn | None = None
    #: Why it was refused.
    invalid: Invalid | None = None


@dataclass
class Emulator:
    """One provider, and what it is to do."""

    provider: Provider
    url: str
    #: What the next requests get that are not refused; when it is empty, `answer` says it.
    script: list[Turn | Scenario] = field(default_factory=list)
    #: From a prompt to the reply's text, or to all of what happens.
    answer: Callable[[str], str | Turn] = lambda prompt: REPLY
    #: Words that a prompt may have before it is too long; None: any number.
    window_words: int | None = None
    #: All requests, in the order in which it was known what they get.
    seen: list[Seen] = field(default_factory=list)
    #: Each request has a thread.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def endpoint(self, model: str | None = None) -> Endpoint:
        """Returns how it is reached; `model` as litellm names it."""
        return self.provider.endpoint(self.url, model)

    @property
    def prompts(self) -> list[str]:
        """The prompts of the requests that were not refused."""
        return [one.prompt for one in self.seen if one.invalid is None]

    @property
    def refusals(self) -> list[str]:
        """The rules that requests broke."""
        return [one.invalid.rule for one in self.seen if one.invalid is not None]

    def respond(self, request: Request) -> Response:
        """Returns the response to a request."""
        aside = self.provider.aside(request)
        if aside is not None:
            return aside
        try:
            self.provider.check(request)
        except Invalid as error:
            self._see(Seen(request=request, invalid=error))
            return self.provider.invalid(error)
        prompt = self.provider.prompt(request)
        turn = self._next(prompt)
        self._see(Seen(request=request, prompt=prompt, turn=turn))
        return self.provider.respond(turn, REPLY if turn.text is None else turn.text, request)

    def _next(self, prompt: str) -> Turn:
        """Returns what a valid request gets."""
        with self._lock:
            scripted = self.script.pop(0) if self.script else None
        if self.window_words is not None and len(prompt.split()) > self.window_words:
            return Turn(scenario=Scenario.TOO_LONG)
        turn = Turn(scenario=scripted) if isinstance(scripted, Scenario) else scripted
        if turn and (turn.text is not None or turn.scenario in self.provider.statuses):
            return turn
        # May wait for what a test does: others are answered meanwhile.
        found = self.answer(prompt)
        said = found if isinstance(found, Turn) else Turn(text=found)
        return said if turn is None else replace(turn, text=said.text)

    def _see(self, seen: Seen) -> None:
        with self._lock:
            self.seen.append(seen)


class Emulators(dict[str, Emulator]):
    """All providers, by their names."""

    def endpoint(self, provider: str, model: str | None = None) -> Endpoint:
        """Returns how one provider is reached."""
        return self[provider].endpoint(model)


class _Server(ThreadingHTTPServer):
    request_queue_size = 512


@contextmanager
def emulators() -> Iterator[Emulators]:
    """Yields a server with all providers, on a free port of this machine."""
    found = Emulators()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            address = urlsplit(self.path)
            _, name, *rest = address.path.split("/", 2)
            request = Request(
                path="/" + "".join(rest),
                query=dict(parse_qsl(address.query)),
                headers={key.lower(): value for key, value in self.headers.items()},
                body=_object(raw),
            )
            self._send(found[name].respond(request))

        def do_GET(self) -> None:
            self._send(Response(status=404))

        def _send(self, response: Response) -> None:
            self.send_response(response.status)
            headers = {"Content-Type": "application/json", **response.headers}
            if response.parts is None:
                headers["Content-Length"] = str(len(response.body))
            else:
                headers["Transfer-Encoding"] = "chunked"
            # Nothing is left of an exchange for the next.
            headers["Connection"] = "close"
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            self.close_connection = True
            if response.parts is None:
                is_cut = response.is_cut
                self.wfile.write(
                    response.body[: len(response.body) // 2] if is_cut else response.body
                )
                return
            try:
                for part in response.parts:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.write(b"0\r\n\r\n")
            except ConnectionError:
                # The client has gone: it hangs up after an error in a stream.
                return

        def log_message(self, format: str, *args: Any) -> None:
            """Keeps quiet."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    found.update({name: Emulator(kind(), url) for name, kind in PROVIDERS.items()})
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _object(raw: bytes) -> dict[str, Any]:
    """Returns the object of a body; empty when it is none, which every provider refuses."""
    try:
        value = json.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
