"""What the client makes of navigations, also of those of a newer service."""

import asyncio
from functools import partial

import pytest

from palimpsest import Question, TrajectoryEvent, _convert_answers
from palimpsest._async._runtime import gather
from palimpsest._convert import value_of
from palimpsest.v1 import answer_service_pb2, common_pb2

_Message = answer_service_pb2.TrajectoryEvent


def test_each_kind_and_action_has_a_name() -> None:
    kinds = answer_service_pb2.TrajectoryEvent.Kind.values()
    actions = answer_service_pb2.TrajectoryEvent.Action.values()
    named = {
        (one.kind, one.action)
        for kind in kinds
        for action in actions
        for one in [value_of(TrajectoryEvent, _Message(kind=kind, action=action))]
        if kind and action
    }
    assert len(named) == (len(kinds) - 1) * (len(actions) - 1)
    assert not any("unknown" in pair for pair in named)


def test_what_a_newer_service_says_is_unknown() -> None:
    message = answer_service_pb2.TrajectoryEvent()
    message.MergeFromString(b"\x10\x63\x18\x63")
    event = value_of(TrajectoryEvent, message)
    assert (event.kind, event.action, event.cached_tokens) == ("unknown", "unknown", None)
    answer = answer_service_pb2.Answer()
    answer.MergeFromString(b"\x58\x63")
    assert _convert_answers.answer(answer).no_answer == "unknown"


def test_why_there_is_no_answer_is_named() -> None:
    reasons = [
        _convert_answers.answer(answer_service_pb2.Answer(no_answer=why)).no_answer
        for why in answer_service_pb2.NoAnswer.values()
    ]
    assert reasons == [None, "unreadable", "not_found", "step_limit", "empty"]


def test_an_answer_of_null_is_distinguished_from_none() -> None:
    for said, value in (("null", (True, None)), ("", (False, None)), ("0", (True, 0))):
        told = _convert_answers.answer(answer_service_pb2.Answer(value_json=said))
        assert (told.has_value, told.value) == value


def test_usage_that_is_not_reported_is_a_number_and_is_marked() -> None:
    usage = common_pb2.Usage(calls=2, unreported_calls=2, unpriced_calls=2)
    found = _convert_answers.answer(answer_service_pb2.Answer(usage=usage)).usage
    assert (found.reported_cached_tokens, found.cost_micro_usd) == (0, 0)
    assert (found.is_reported, found.is_priced) == (False, False)


def test_a_question_without_wishes_sends_none() -> None:
    asked = _convert_answers.request_of("s", Question(query="Which?"))
    assert (asked.HasField("navigation"), asked.HasField("filter")) == (False, False)
    sent = _convert_answers.request_of("s", Question(query="Which?", beam=2)).navigation
    assert (sent.hybrid_leaves, sent.beam, sent.max_calls) == (0, 2, 0)


def test_options_are_of_the_question_and_navigate_nothing() -> None:
    sent = _convert_answers.request_of(
        "s", Question(query="Which?", memory="m", options=("a", "b"))
    )
    assert (list(sent.options), sent.HasField("navigation")) == (["a", "b"], False)
    with pytest.raises(ValueError, match="options must be a collection of strings"):
        _convert_answers.request_of("s", Question(query="Which?", options="ab"))


async def test_no_more_questions_than_allowed_run_at_once() -> None:
    going: list[int] = [0, 0]

    async def ask(query: str) -> str:
        going[0] += 1
        going[1] = max(going)
        await asyncio.sleep(0)
        going[0] -= 1
        return query

    answers = await gather([partial(ask, query) for query in "abcdef"], limit=2)
    assert answers == ["a", "b", "c", "d", "e", "f"]
    assert going[1] == 2


def test_a_question_navigates_when_it_says_so() -> None:
    asked = _convert_answers.request_of("s", Question(query="Which?", navigate=True))
    assert asked.HasField("navigation")
    assert asked.navigation == answer_service_pb2.NavigationOptions()
