"""Frames and orders between a worker and its executor."""

import asyncio
import json
import struct
import traceback
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.calls.ledger import CallScope, Lease
from service.domain.calls.prefix_index import Prefix
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelReply, ModelRequest, Purpose, Segment, SegmentKind
from service.llm.executor.wire import (
    MAX_FRAME_BYTES,
    frame,
    read_frame,
    reply_from_json,
    reply_to_json,
    request_from_json,
    request_to_json,
)
from service.llm.providers.plans import CallPlan, CallRequest, Route

SECRET = "Anna has diabetes."
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
IDS = st.builds(UUID, int=st.integers(0, 2**128 - 1))

ORDERS = st.builds(
    CallRequest,
    ask=st.builds(
        ModelRequest,
        purpose=st.sampled_from(Purpose),
        template=TEXTS,
        segments=st.lists(
            st.builds(
                Segment,
                kind=st.sampled_from(SegmentKind),
                text=TEXTS,
                reusable=st.booleans(),
                lasting=st.booleans(),
            )
        ).map(tuple),
        max_output_tokens=st.integers(1, 10_000),
        reply_schema=st.none() | st.dictionaries(TEXTS, TEXTS),
        attempt=st.integers(0, 3),
    ),
    model=TEXTS,
    scope=st.builds(
        CallScope, tenant_id=IDS, session_key=IDS, memory_id=st.none() | IDS, occasion=TEXTS
    ),
    key=st.binary(min_size=32, max_size=32),
    lease=st.builds(Lease, fence=st.integers(1, 2**40)),
    lease_deadline=st.floats(0, 1e9),
    prefix=st.builds(
        Prefix,
        memory_key=TEXTS,
        group_key=TEXTS,
        ids=st.lists(st.binary(min_size=8, max_size=8)).map(tuple),
        tokens=st.lists(st.integers(0, 10**6)).map(tuple),
    ),
    route=st.builds(
        Route,
        deployment=TEXTS,
        predicted_tokens=st.integers(0, 10**6),
        age_seconds=st.none() | st.floats(0, 1e6),
    ),
    plan=st.builds(CallPlan, marks=st.lists(st.integers(0, 99)).map(tuple), cache_key=TEXTS),
)


def reader_of(raw: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(raw)
    reader.feed_eof()
    return reader


@given(ORDERS)
def test_an_order_comes_through_whole(order: CallRequest) -> None:
    assert request_from_json(json.loads(json.dumps(request_to_json(order)))) == order


@given(
    st.builds(
        ModelReply,
        text=TEXTS,
        model=TEXTS,
        input_tokens=st.integers(0, 10**9),
        cached_tokens=st.none() | st.integers(0, 10**9),
        output_tokens=st.integers(0, 10**9),
        reasoning_tokens=st.none() | st.integers(0, 10**9),
        end=st.sampled_from(End),
        said=TEXTS,
    )
)
def test_a_reply_comes_through_with_its_counts(reply: ModelReply) -> None:
    said = {"id": 1, **json.loads(json.dumps(reply_to_json(reply)))}
    assert reply_from_json(said) == reply


def test_an_end_that_only_another_release_knows_is_unknown() -> None:
    said = {**reply_to_json(ModelReply(text="", model="m/x")), "end": "of a later release"}
    assert reply_from_json(said).end is End.UNKNOWN


def test_a_reply_that_does_not_fit_is_refused_without_its_texts() -> None:
    said = {"text": [SECRET], "end": "complete"}
    with pytest.raises(ValueError, match=r"of another form: .*text") as caught:
        reply_from_json(said)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_an_order_has_the_form_that_the_release_before_reads() -> None:
    segment = Segment(kind=SegmentKind.TASK, text="Say a.", reusable=True)
    order = CallRequest(
        ask=ModelRequest(
            purpose=Purpose.REVISE, template="t/1", segments=(segment,), max_output_tokens=9
        ),
        model="m/x",
        scope=CallScope(
            tenant_id=UUID(int=1), session_key=UUID(int=2), memory_id=None, occasion="o"
        ),
        key=b"k",
        lease=Lease(fence=3),
        lease_deadline=4.0,
        prefix=Prefix(memory_key="", group_key="", ids=(b"i",), tokens=(5,)),
        route=Route(),
        plan=CallPlan(),
    )
    said = request_to_json(order)
    assert said["ask"]["segments"] == [["task", "Say a.", True, segment.lasting]]
    assert (said["key"], said["fence"], said["prefix"]["ids"]) == ("6b", 3, ["69"])


async def test_frames_come_one_after_the_other_and_then_the_end() -> None:
    reader = reader_of(frame({"a": "ä"}) + frame({"b": 2}))
    assert [await read_frame(reader) for _ in range(3)] == [{"a": "ä"}, {"b": 2}, None]


@pytest.mark.parametrize("cut", [1, 3, 4, 6])
async def test_a_frame_that_was_cut_off_is_the_end(cut: int) -> None:
    assert await read_frame(reader_of(frame({"a": 1})[:cut])) is None


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack(">I", MAX_FRAME_BYTES + 1),
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 1) + b"{",
    ],
)
async def test_what_is_no_frame_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"frame|Expecting"):
        await read_frame(reader_of(raw))
