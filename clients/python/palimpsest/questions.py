"""From the client's questions to the proto's messages."""

from collections.abc import Iterable, Sequence

from palimpsest.answer_values import (
    BrowseAction,
    BrowseOption,
    BrowseOrder,
    BrowseSettings,
    Question,
    Reader,
)
from palimpsest.schemas import Schema, schema_fields
from palimpsest.specs import message_of
from palimpsest.v1 import answers_pb2, reading_pb2

_Browse = answers_pb2.BrowseRequest

_READERS: dict[Reader | None, answers_pb2.Reader.ValueType] = {
    None: answers_pb2.READER_UNSPECIFIED,
    "prism": answers_pb2.READER_PRISM,
    "memwalker": answers_pb2.READER_MEMWALKER,
    "pcc": answers_pb2.READER_PCC,
    "dciso": answers_pb2.READER_DCISO,
    "whole": answers_pb2.READER_WHOLE,
    "auto": answers_pb2.READER_AUTO,
}
_OPTIONS: dict[BrowseOption, answers_pb2.BrowseRequest.Option.ValueType] = {
    "auto": _Browse.OPTION_UNSPECIFIED,
    "dynamic": _Browse.OPTION_DYNAMIC,
    "rank": _Browse.OPTION_RANK,
    "carry": _Browse.OPTION_CARRY,
    "independent": _Browse.OPTION_INDEPENDENT,
    "scan": _Browse.OPTION_SCAN,
    "random": _Browse.OPTION_RANDOM,
}
_ACTIONS: dict[BrowseAction, answers_pb2.BrowseRequest.Action.ValueType] = {
    "task_understanding": _Browse.ACTION_TASK_UNDERSTANDING,
    "retrieve": _Browse.ACTION_RETRIEVE,
    "move": _Browse.ACTION_MOVE,
    "append": _Browse.ACTION_APPEND,
    "merge": _Browse.ACTION_MERGE,
    "answer": _Browse.ACTION_ANSWER,
    "aggregation": _Browse.ACTION_AGGREGATION,
}
_ORDERS: dict[BrowseOrder, answers_pb2.BrowseRequest.Order.ValueType] = {
    "auto": _Browse.ORDER_UNSPECIFIED,
    "forward": _Browse.ORDER_FORWARD,
    "backward": _Browse.ORDER_BACKWARD,
}


def request_of(session: str, question: Question) -> answers_pb2.AskRequest:
    """The question as it is sent. Raises ValueError or TypeError for what cannot be sent."""
    if question.reader not in _READERS:
        raise ValueError(f"reader must be one of {_listed(_READERS)}")
    return message_of(
        answers_pb2.AskRequest,
        session=session,
        memory=question.memory,
        query=question.query,
        consistency=consistency(question.after, question.fully_applied),
        navigation=navigation(
            question.hybrid_leaves,
            question.beam,
            question.max_calls,
            question.navigate,
        ),
        reader=_READERS[question.reader],
        browsing=None if question.browsing is None else browsing(question.browsing),
        response_schema=response_schema(question.response_schema),
        stream_text=question.stream,
        model=question.model,
        options=options(question.options),
        unattended=question.unattended,
    )


def browsing(settings: BrowseSettings) -> answers_pb2.BrowseRequest:
    """How a log is to be browsed. Raises ValueError for what cannot be sent."""
    actions = settings.actions
    if isinstance(actions, str):
        raise ValueError("actions must be a list of actions, not one text")
    if settings.option not in _OPTIONS:
        raise ValueError(f"option must be one of {_listed(_OPTIONS)}")
    if settings.order not in _ORDERS:
        raise ValueError(f"order must be one of {_listed(_ORDERS)}")
    if not set(actions) <= set(_ACTIONS):
        raise ValueError(f"actions must be of {_listed(_ACTIONS)}")
    return message_of(
        answers_pb2.BrowseRequest,
        option=_OPTIONS[settings.option],
        actions=[_ACTIONS[one] for one in actions],
        order=_ORDERS[settings.order],
        window_tokens=settings.window_tokens,
        pieces=settings.pieces,
        max_calls=settings.max_calls,
        rerank=settings.rerank,
    )


def response_schema(schema: Schema | None) -> str:
    """The JSON Schema as a text; empty without one. Raises TypeError or ValueError."""
    if schema is None:
        return ""
    if isinstance(schema, str):
        if not schema.strip():
            # Sent as nothing it would ask for nothing.
            raise ValueError("response_schema is empty")
        return schema
    return schema_fields(schema)["json_schema"]


def options(given: Sequence[str]) -> Sequence[str]:
    """The options of a question. Raises ValueError for what cannot be sent."""
    if isinstance(given, str):
        raise ValueError("options must be a list of texts, not one text")
    return given


def navigation(
    hybrid_leaves: int,
    beam: int,
    max_calls: int,
    navigate: bool = False,
) -> answers_pb2.NavigationRequest | None:
    """How a memory is to be navigated; None when the caller does not say.

    Raises ValueError for what cannot be sent.
    """
    if not (navigate or hybrid_leaves or beam or max_calls):
        return None
    return message_of(
        answers_pb2.NavigationRequest,
        hybrid_leaves=hybrid_leaves,
        beam=beam,
        max_calls=max_calls,
    )


def consistency(after: str, fully_applied: bool) -> reading_pb2.ReadConsistency | None:
    """How fresh what is read must be; None when the caller does not say."""
    if fully_applied:
        return reading_pb2.ReadConsistency(fully_applied=True)
    return reading_pb2.ReadConsistency(at_least=after) if after else None


def _listed(names: Iterable[str | None]) -> str:
    return ", ".join(name for name in names if name is not None)
