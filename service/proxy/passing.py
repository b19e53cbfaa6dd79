"""A provider's reply, passed through as it comes."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import structlog
from starlette.responses import StreamingResponse

from service.proxy.replies import ReplyReader

_log = structlog.get_logger("palimpsest.proxy")


@dataclass(frozen=True, kw_only=True)
class CallEnd:
    """How a call ended."""

    #: Whether the provider refused it, or never got it.
    was_refused: bool
    #: Whether the client left, or the connection broke, before the last byte.
    was_cut: bool


class Passing(StreamingResponse):
    """Passes a reply through, with its status, its headers and its bytes as they are."""

    def __init__(
        self,
        upstream: httpx.Response,
        headers: Sequence[tuple[str, str]],
        reader: ReplyReader | None,
        ended: Callable[[bool], None],
    ) -> None:
        """`ended` gets, after the last byte or without it, whether the reply was cut."""
        super().__init__(self._pieces(), status_code=upstream.status_code)
        self.raw_headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers
        ]
        self._upstream = upstream
        self._reader = reader
        self._ended = ended
        self._was_cut = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends the reply. A broken one ends without its last chunk, so that the client sees it."""
        try:
            await super().__call__(scope, receive, send)
        except httpx.TransportError as error:
            _log.warning("the provider broke a reply off", kind=type(error).__name__)
        finally:
            # Also when the client left before the first byte.
            self._ended(self._was_cut)

    async def _pieces(self) -> AsyncIterator[bytes]:
        async for piece in self._upstream.aiter_raw():
            if self._reader is not None:
                self._reader.feed(piece)
            yield piece
        self._was_cut = False
