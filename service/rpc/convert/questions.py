"""Questions: readers, navigations and browsings, from their messages."""

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
from service.domain.answers.readers import ReaderName

_Browse = answer_service_pb2.BrowsingOptions

_READERS = {
    answer_service_pb2.READER_PRISM: ReaderName.PRISM,
    answer_service_pb2.READER_MEMWALKER: ReaderName.MEMWALKER,
    answer_service_pb2.READER_PCC: ReaderName.PCC,
    answer_service_pb2.READER_DCISO: ReaderName.DCISO,
    answer_service_pb2.READER_WHOLE: ReaderName.WHOLE,
    answer_service_pb2.READER_AUTO: ReaderName.AUTO,
}
#: As the proto has them; None: the question does not say.
READER_MESSAGES: dict[ReaderName | None, answer_service_pb2.Reader.ValueType] = {
    None: answer_service_pb2.READER_UNSPECIFIED,
    **{reader: message for message, reader in _READERS.items()},
}
_ACTIONS = {
    _Browse.ACTION_TASK_UNDERSTANDING: BrowseAction.TASK_UNDERSTANDING,
    _Browse.ACTION_RETRIEVE: BrowseAction.RETRIEVE,
    _Browse.ACTION_MOVE: BrowseAction.MOVE,
    _Browse.ACTION_APPEND: BrowseAction.APPEND,
    _Browse.ACTION_MERGE: BrowseAction.MERGE,
    _Browse.ACTION_ANSWER: BrowseAction.ANSWER,
    _Browse.ACTION_AGGREGATION: BrowseAction.AGGREGATION,
}
_STRATEGIES = {
    _Browse.STRATEGY_UNSPECIFIED: BrowseOption.AUTO,
    _Browse.STRATEGY_DYNAMIC: BrowseOption.DYNAMIC,
    _Browse.STRATEGY_RANK: BrowseOption.RANK,
    _Browse.STRATEGY_CARRY: BrowseOption.CARRY,
    _Browse.STRATEGY_INDEPENDENT: BrowseOption.INDEPENDENT,
    _Browse.STRATEGY_SCAN: BrowseOption.SCAN,
}
#: As the proto has them; None: nothing is browsed.
STRATEGY_MESSAGES: dict[
    BrowseOption | None, answer_service_pb2.BrowsingOptions.Strategy.ValueType
] = {
    None: _Browse.STRATEGY_UNSPECIFIED,
    **{option: message for message, option in _STRATEGIES.items()},
}
_ORDERS = {
    _Browse.ORDER_UNSPECIFIED: ReadingOrder.AUTO,
    _Browse.ORDER_FORWARD: ReadingOrder.FORWARD,
    _Browse.ORDER_BACKWARD: ReadingOrder.BACKWARD,
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
        option=_STRATEGIES[message.strategy],
        actions=frozenset(_ACTIONS[one] for one in message.actions) or ALL_ACTIONS,
        order=_ORDERS[message.order],
        window_tokens=message.window_tokens or DEFAULT_WINDOW_TOKENS,
        pieces=message.pieces or DEFAULT_PIECES,
        max_calls=message.max_calls or DEFAULT_CALLS,
        rerank=message.rerank,
    )
