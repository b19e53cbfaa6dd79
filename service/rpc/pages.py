"""Page tokens and page sizes."""

from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message

from service.domain.errors import InvalidInput
from service.domain.read_tokens import TokenInvalid, sign_page, verify_page
from service.domain.reasons import Reason

T = TypeVar("T", bound=Message)

#: A page when the caller does not say.
DEFAULT_PAGE_SIZE = 100


class Pages:
    """Signs and reads page tokens."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def size(self, asked: int) -> int:
        """The page size; the proto's rules bound it."""
        return asked or DEFAULT_PAGE_SIZE

    def next(self, scope: str, place: str) -> str:
        """The token of the page behind `place` in the list named `scope`."""
        return sign_page(self._key, scope, place)

    def place(self, scope: str, token: str, *, first: str, field: str = "page_token") -> str:
        """Where the page of `token` begins; `first` without one. Raises InvalidInput."""
        if not token:
            return first
        try:
            return verify_page(self._key, scope, token)
        except TokenInvalid as error:
            raise InvalidInput(
                Reason.TOKEN_INVALID,
                "the token was not issued for this request, or altered",
                field=field,
            ) from error


def fitting(items: Sequence[T], max_bytes: int) -> Sequence[T]:
    """The first of the messages that have `max_bytes` together, and at least one."""
    total = 0
    for number, item in enumerate(items):
        total += item.ByteSize()
        if number and total > max_bytes:
            return items[:number]
    return items
