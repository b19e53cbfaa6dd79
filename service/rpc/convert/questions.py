"""Questions: readers, navigations and browsings, from their messages."""

from typing import Any

from palimpsest.v1 import answer_service_pb2
from service.domain.answers.browse.spec import (
    ALL_ACTIONS,
    DEFAULT_CALLS,
    DEFAULT_PIECES,
    DEFAULT_WINDOW_TOKENS,
    BrowseAction,
    BrowseOption,
    BrowseRequest,
    ReadingOrder,
)
from service.domain.answers.navigation_request import DEFAULT_CALLS as NAVIGATION_CALLS
from service.domain.answers.navigation_request import NavigationRequest
from service.domain.values.memory_specs import ReaderName
from service.rpc.convert.common import member_of, numbers_of

_Browse = answer_service_pb2.BrowsingOptions

#: As the proto has them; None: the question does not say.
READER_MESSAGES: dict[Any, Any] = {
    None: answer_service_pb2.READER_UNSPECIFIED,
    **numbers_of(ReaderName, answer_service_pb2.Reader, "READER_"),
}
_READERS = {number: reader for reader, number in READER_MESSAGES.items()}
_ACTIONS = {
    number: action for action, number in numbers_of(BrowseAction, _Browse.Action, "ACTION_").items()
}
#: As the proto has them; None: nothing is browsed.
STRATEGY_MESSAGES: dict[Any, Any] = {
    None: 0,
    **numbers_of(BrowseOption, _Browse.Strategy, "STRATEGY_", BrowseOption.AUTO),
}


def reader(message: answer_service_pb2.Reader.ValueType) -> ReaderName | None:
    """Returns the reader that is named; None: none is."""
    return _READERS.get(message)


def navigation(message: answer_service_pb2.NavigationOptions) -> NavigationRequest:
    """Returns how a memory is to be navigated; zeros are the defaults."""
    return NavigationRequest(
        hybrid_leaves=message.hybrid_leaves,
        beam=message.beam or 1,
        max_calls=message.max_calls or NAVIGATION_CALLS,
    )


def browsing(message: answer_service_pb2.BrowsingOptions) -> BrowseRequest:
    """Returns how a log is to be browsed; zeros are the defaults."""
    return BrowseRequest(
        option=member_of(message, "strategy", BrowseOption.AUTO),
        actions=frozenset(_ACTIONS[one] for one in message.actions) or ALL_ACTIONS,
        order=member_of(message, "order", ReadingOrder.AUTO),
        window_tokens=message.window_tokens or DEFAULT_WINDOW_TOKENS,
        pieces=message.pieces or DEFAULT_PIECES,
        max_calls=message.max_calls or DEFAULT_CALLS,
        rerank=message.rerank,
    )
