"""Readers, and how they browse, between the proto's messages and our values."""

from palimpsest.v1alpha1 import answers_pb2
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
from service.domain.answers.readers import ReaderName

_Message = answers_pb2.BrowseRequest

_READERS = {
    answers_pb2.READER_PRISM: ReaderName.PRISM,
    answers_pb2.READER_MEMWALKER: ReaderName.MEMWALKER,
    answers_pb2.READER_PCC: ReaderName.PCC,
    answers_pb2.READER_DCISO: ReaderName.DCISO,
    answers_pb2.READER_WHOLE: ReaderName.WHOLE,
    answers_pb2.READER_AUTO: ReaderName.AUTO,
}
#: As the proto has them; None: nobody said.
READER_MESSAGES: dict[ReaderName | None, answers_pb2.Reader.ValueType] = {
    None: answers_pb2.READER_UNSPECIFIED,
    **{reader: message for message, reader in _READERS.items()},
}
_ACTIONS = {
    _Message.ACTION_TASK_UNDERSTANDING: BrowseAction.TASK_UNDERSTANDING,
    _Message.ACTION_RETRIEVE: BrowseAction.RETRIEVE,
    _Message.ACTION_MOVE: BrowseAction.MOVE,
    _Message.ACTION_APPEND: BrowseAction.APPEND,
    _Message.ACTION_MERGE: BrowseAction.MERGE,
    _Message.ACTION_ANSWER: BrowseAction.ANSWER,
    _Message.ACTION_AGGREGATION: BrowseAction.AGGREGATION,
}
_OPTIONS = {
    _Message.OPTION_UNSPECIFIED: BrowseOption.AUTO,
    _Message.OPTION_DYNAMIC: BrowseOption.DYNAMIC,
    _Message.OPTION_RANK: BrowseOption.RANK,
    _Message.OPTION_CARRY: BrowseOption.CARRY,
    _Message.OPTION_INDEPENDENT: BrowseOption.INDEPENDENT,
    _Message.OPTION_SCAN: BrowseOption.SCAN,
    _Message.OPTION_RANDOM: BrowseOption.RANDOM,
}
#: As the proto has them; None: nobody browses.
OPTION_MESSAGES: dict[BrowseOption | None, answers_pb2.BrowseRequest.Option.ValueType] = {
    None: _Message.OPTION_UNSPECIFIED,
    **{option: message for message, option in _OPTIONS.items()},
}
_ORDERS = {
    _Message.ORDER_UNSPECIFIED: ReadingOrder.AUTO,
    _Message.ORDER_FORWARD: ReadingOrder.FORWARD,
    _Message.ORDER_BACKWARD: ReadingOrder.BACKWARD,
}


def reader(message: answers_pb2.Reader.ValueType) -> ReaderName | None:
    """Who is to read; None: nobody said."""
    return _READERS.get(message)


def request(message: answers_pb2.BrowseRequest) -> BrowseRequest:
    """How a log is to be browsed; zeros are the defaults."""
    return BrowseRequest(
        option=_OPTIONS[message.option],
        actions=frozenset(_ACTIONS[one] for one in message.actions) or ALL_ACTIONS,
        order=_ORDERS[message.order],
        window_tokens=message.window_tokens or DEFAULT_WINDOW_TOKENS,
        pieces=message.pieces or DEFAULT_PIECES,
        max_calls=message.max_calls or DEFAULT_CALLS,
        rerank=message.rerank,
    )
