"""Fills messages from values by name, and leaves no field unset."""

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from itertools import count
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest
from google.protobuf.message import Message

from palimpsest.v1 import billing_service_pb2, common_pb2
from service.domain.answers.trajectory import Event, EventKind
from service.domain.log.chunks import LoggedChunk
from service.domain.prism.spec import PrismSpec
from service.domain.spend.budgets import BudgetPeriod, Standing
from service.domain.spend.prices import LogCost
from service.domain.state.accounting import Accounting
from service.domain.state.spec import StateSpec
from service.domain.state.vectors import StateVector
from service.domain.tree.spec import TreeSpec
from service.rpc import transfers
from service.rpc.convert import answers, history, search, specs, spend, states, trees
from service.rpc.convert.common import message_of, moment
from service.usecases.search.search import FoundPage, SearchHit, SearchMode
from service.usecases.spend.comparing import Compared
from service.usecases.spend.costs import Cost
from storage.answers.trajectories import NavigationTotals
from storage.log.sessions import StoredSession
from storage.memories.history import StoredRevision
from storage.prism.amendment_log import LoggedAmendment, LoggedRejection
from storage.search.finding import SearchPlace
from storage.spend.costs import ResidualLine
from storage.spend.spend import Spend
from storage.tree.views import StoredNode

NOW = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
SCHEMA = "class A:\n    a: str\n"


def _filled(kind: Any, numbers: Any) -> Any:
    """Returns a value of a type whose every part is set."""
    if get_origin(kind) in (Union, types.UnionType):
        return _filled(next(one for one in get_args(kind) if one is not type(None)), numbers)
    if get_origin(kind) is tuple:
        return (_filled(get_args(kind)[0], numbers),)
    if get_origin(kind) is Mapping:
        return {"key": "value"}
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        make: Any = kind
        return make(**{one.name: _filled(hints[one.name], numbers) for one in fields(kind)})
    if issubclass(kind, Enum):
        return list(kind)[-1]
    samples: dict[Any, Any] = {
        bool: True,
        str: "text",
        bytes: b"bytes",
        datetime: NOW,
        UUID: UUID(int=1),
    }
    return samples[kind] if kind in samples else kind(next(numbers))


def filled(kind: Any, /, **others: Any) -> Any:
    """Returns a dataclass with every field set; its numbers rise."""
    hints, numbers = get_type_hints(kind), count(1)
    return kind(
        **{
            one.name: others.get(one.name) or _filled(hints[one.name], numbers)
            for one in fields(kind)
        }
    )


def _cost(detail: type) -> billing_service_pb2.CostReport:
    cost = Cost(
        total=filled(Spend),
        residuals=[filled(ResidualLine, residual="drift")],
        reading=filled(LogCost),
        detail=filled(detail),
    )
    return spend.cost_report(cost)


def _result() -> Message:
    hit = filled(SearchHit)
    page = FoundPage(
        found=[hit],
        mode=SearchMode.HYBRID,
        index=filled(SearchPlace),
        chunks={hit.position: filled(LoggedChunk)},
    )
    return search.result(page, hit, 1)


#: By message: its converter, called with values whose every field is set, and the fields that
#: other tests cover since they exclude others or are set only in cases.
CONVERTED: dict[str, tuple[Callable[[], Message], set[str]]] = {
    "Session": (lambda: transfers.session_message(filled(StoredSession)), set()),
    "StateVector": (lambda: states.vector(filled(StateVector), NOW), set()),
    "Amendment": (lambda: history.amendment(filled(LoggedAmendment, kind="step")), set()),
    "Rejection": (lambda: history.rejection(filled(LoggedRejection)), set()),
    "Revision": (lambda: history.revision(filled(StoredRevision, kind="step")), set()),
    "Result": (_result, set()),
    "SearchIndex": (lambda: search.index(filled(SearchPlace)), set()),
    "Usage": (lambda: spend.usage(filled(Spend)), set()),
    "CostReport, compared": (lambda: _cost(Compared), {"accounting"}),
    "CostReport, accounting": (lambda: _cost(Accounting), {"comparison"}),
    "Budget": (lambda: spend.budget(filled(Standing, period=BudgetPeriod.DAY)), set()),
    "TreeNode": (lambda: trees.node(filled(StoredNode)), set()),
    "TrajectoryEvent": (lambda: answers.trajectory_event(filled(Event)), set()),
    "NavigationStatistics": (lambda: answers.statistics(filled(NavigationTotals)), set()),
    "TreeSpec": (lambda: specs.tree_message(filled(TreeSpec)), set()),
    "StateSpec": (lambda: specs.state_message(filled(StateSpec)), set()),
    "PrismSpec": (
        lambda: specs.prism_message(filled(PrismSpec, schema_source=SCHEMA)),
        {"json_schema"},
    ),
}


def _unset(message: Message, within: str = "") -> set[str]:
    """Returns the fields of a message, and of those in it, that have no value."""
    found = {field.name: value for field, value in message.ListFields()}
    unset = {f"{within}{field.name}" for field in message.DESCRIPTOR.fields} - {
        f"{within}{name}" for name in found
    }
    for name, value in found.items():
        if isinstance(value, Message) and message.DESCRIPTOR.file == value.DESCRIPTOR.file:
            unset |= _unset(value, f"{within}{name}.")
    return unset


@pytest.mark.parametrize("name", CONVERTED)
def test_no_field_of_a_message_is_left_unset(name: str) -> None:
    convert, excluded = CONVERTED[name]
    assert _unset(convert()) == excluded


def test_a_field_that_the_value_has_not_is_refused_and_one_of_another_name_is_given() -> None:
    costs = filled(LogCost)
    with pytest.raises(AttributeError, match="failed_calls"):
        message_of(common_pb2.Usage, costs, calls=1)
    with pytest.raises(ValueError, match="prompts"):
        message_of(common_pb2.Usage, filled(Spend), prompts=1)


def test_times_members_and_dataclasses_become_what_the_proto_has() -> None:
    shown = transfers.session_message(filled(StoredSession))
    assert moment(shown.created_at) == NOW
    event = answers.trajectory_event(filled(Event))
    assert event.Kind.Name(event.kind) == f"KIND_{list(EventKind)[-1].name}"
    accounting = filled(Accounting)
    report = _cost(Accounting)
    assert report.accounting.pcc.formula_tokens == accounting.pcc.formula_tokens
