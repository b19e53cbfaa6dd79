"""Page tokens and page sizes."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from google.protobuf.message import Message

from service.domain.access.identity import tenant_mark
from service.domain.log.read_tokens import TokenInvalid, sign_page, verify_page
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.rpc.interceptors.lives import current_lives
from service.settings.config import Limits

T = TypeVar("T", bound=Message)

#: A page when the client does not say.
DEFAULT_PAGE_SIZE = 100
#: A page at most.
MAX_PAGE_SIZE = 1000
#: Bytes of the encoded items of a page at most; fewer if messages must be smaller.
PAGE_BYTES = 2 * 1024 * 1024
#: Bytes around an item of a message at most: its tag and its length.
_AROUND_BYTES = 8
#: Bytes of a message besides the items of a page at most: tokens, figures.
_BESIDE_BYTES = 16 * 1024


class Pages:
    """Signs and reads page tokens, and cuts pages so that they fit a message."""

    def __init__(self, key: bytes, limits: Limits) -> None:
        self._key = key
        self._message_bytes = limits.max_message_bytes - _BESIDE_BYTES
        #: What a page ends at. Half of a message leaves room for an item that is larger than
        #: the others: an item alone always comes.
        self.max_bytes = min(PAGE_BYTES, limits.max_message_bytes // 2)

    def size(self, asked: int) -> int:
        """Returns what is asked for as the size of a page, up to the limit."""
        return min(asked or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)

    def next(self, scope: str, cursor: str) -> str:
        """Returns the token of the page after `cursor` in the list named `scope`."""
        return sign_page(self._key, _bound(scope), cursor)

    def cursor(self, scope: str, token: str, *, first: str, field: str = "page_token") -> str:
        """Returns where the page of `token` begins; `first` without one. Raises InvalidInput."""
        if not token:
            return first
        try:
            return verify_page(self._key, _bound(scope), token)
        except TokenInvalid as error:
            raise InvalidInput(
                Reason.TOKEN_INVALID,
                "the token was not issued for this request, or altered, or what it is about was"
                " deleted: begin at the first page",
                field=field,
            ) from error

    def created_before(self, scope: str, token: str) -> tuple[datetime, UUID] | None:
        """Returns the time and id that the page of `token` comes after; None on the first."""
        text = self.cursor(scope, token, first="")
        if not text:
            return None
        created_at, _, item_id = text.partition(" ")
        return datetime.fromisoformat(created_at), UUID(item_id)

    def cut(
        self,
        items: Sequence[T],
        scope: str,
        cursor: Callable[[T], str],
        *,
        more: bool,
        most: bool = False,
    ) -> tuple[Sequence[T], str]:
        """Returns the items of a page, and the token of the next; empty on the last.

        `cursor` names where an item is in the list; `more` says whether others follow these.
        With `most` a page ends only where no message holds more: for a list that once had no
        pages, whose old clients ask for no other.
        """
        page = fitting(items, self._message_bytes if most else self.max_bytes)
        if more or len(page) < len(items):
            return page, self.next(scope, cursor(page[-1]))
        return page, ""


def _bound(scope: str) -> str:
    """Returns the scope with what else a token is of: lives of session and memory, and tenant."""
    return scope + current_lives() + tenant_mark()


def fitting(items: Sequence[T], max_bytes: int) -> Sequence[T]:
    """Returns the first messages, up to `max_bytes` together, and at least one."""
    total = 0
    for number, item in enumerate(items):
        total += item.ByteSize() + _AROUND_BYTES
        if number and total > max_bytes:
            return items[:number]
    return items
