"""The rule of segments, for every flow that asks a model."""

import hashlib
from itertools import combinations

import pytest

from service.domain.answers.browse import wording
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.domain.state import asking as state
from service.llm.gateway.gateway import call_key
from service.llm.prefix_cache.cache import prefix_of
from tests.unit.answers.flow_asks import FLOWS, SCOPE


def has_unchanging_bases(ask: ModelRequest) -> bool:
    """Returns whether its bases are stored texts, which never change; a memory's is rewritten."""
    return ask.purpose is Purpose.NAVIGATE or ask.template == state.ANSWER


def ids(ask: ModelRequest) -> tuple[bytes, ...]:
    return prefix_of(
        ask.segments, model="m/x", tenant_id=SCOPE.tenant_id, owner_id=SCOPE.owner_id
    ).ids


def common(one: ModelRequest, other: ModelRequest) -> int:
    """Returns how many of their first segments, as texts, two asks share."""
    texts = zip(one.segments, other.segments, strict=False)
    for at, (left, right) in enumerate(texts):
        if left.text != right.text:
            return at
    return min(len(one.segments), len(other.segments))


def test_every_purpose_has_a_flow_here() -> None:
    # Vectors are of texts as they are: no prompt is made for them.
    purposes = set(Purpose) - {Purpose.EMBED}
    assert {ask.purpose for name in FLOWS for ask in FLOWS[name]()} == purposes


@pytest.mark.parametrize("name", FLOWS)
def test_the_prompt_is_its_segments_and_the_same_for_the_same_values(name: str) -> None:
    asks = FLOWS[name]()
    for ask, again in zip(asks, FLOWS[name](), strict=True):
        assert ask.text == "".join(segment.text for segment in ask.segments)
        assert ask.segments == again.segments
        assert all(segment.text for segment in ask.segments)


@pytest.mark.parametrize("name", FLOWS)
def test_what_is_stable_comes_first(name: str) -> None:
    order = list(SegmentKind)
    for ask in FLOWS[name]():
        flags = [segment.reusable for segment in ask.segments]
        assert flags == sorted(flags, reverse=True), "no reusable one behind one that is not"
        kinds = [order.index(segment.kind) for segment in ask.segments]
        assert kinds == sorted(kinds)
        assert ask.segments[0].kind is SegmentKind.TASK
        assert ask.segments[0].reusable
        last = ask.segments[-1]
        assert not last.reusable or ask.purpose is Purpose.SCHEMA
        # A mark changes with its text: only what never changes may have one there.
        assert has_unchanging_bases(ask) or not any(
            "<<<data" in s.text for s in ask.segments if s.kind is SegmentKind.BASE and s.reusable
        )


@pytest.mark.parametrize("name", FLOWS)
def test_two_prompts_share_exactly_the_ids_of_their_common_beginning(name: str) -> None:
    for one, other in combinations(FLOWS[name](), 2):
        shared = len(set(ids(one)) & set(ids(other)))
        assert shared == min(common(one, other), len(ids(one)), len(ids(other)))


@pytest.mark.parametrize("name", FLOWS)
def test_memories_with_one_task_share_its_segment(name: str) -> None:
    asks = FLOWS[name]()
    first = [ask for ask in asks if ask.template == asks[0].template]
    assert len({ids(ask)[0] for ask in first}) == len({ask.segments[0].text for ask in first})


def test_a_step_shares_with_the_one_before_all_but_what_was_added() -> None:
    before, after = FLOWS["revise"]()[1:3]
    assert ids(after)[: len(ids(before))] == ids(before)
    assert len(ids(after)) == len(ids(before)) + 1


def test_a_memory_that_is_rewritten_each_time_is_not_worth_keeping() -> None:
    for name, lasting in (("revise, in place", False), ("revise", True)):
        base: Segment = FLOWS[name]()[1].segments[1]
        assert (base.kind, base.lasting, base.reusable) == (SegmentKind.BASE, lasting, True)


def test_questions_on_one_tree_share_what_they_read() -> None:
    asks = FLOWS["navigate"]()
    who, what = asks[:2], asks[6:8]
    for one, other in zip(who, what, strict=True):
        bases = [s for s in one.segments if s.kind is SegmentKind.BASE]
        assert len(ids(one)) >= 1 + len(bases)
        assert ids(one) == ids(other)
        assert one.text != other.text


def test_questions_on_one_log_share_the_pieces_that_they_read() -> None:
    asks = FLOWS["browse"]()
    who, what = (
        [ask for ask in asks if ask.template == wording.PIECE and query in ask.text]
        for query in ("\nWho?\n", "\nWhat?\n")
    )
    assert len(who) == len(what) > 3
    for one, other in zip(who, what, strict=True):
        # Instructions and piece.
        assert len(ids(one)) == 2
        assert ids(one) == ids(other)
        assert one.text != other.text


def test_a_node_that_is_asked_again_has_the_beginning_that_it_had() -> None:
    asks = FLOWS["navigate"]()
    assert ids(asks[1]) == ids(asks[4])
    assert asks[1].text != asks[4].text


def test_a_root_that_grows_begins_as_it_did() -> None:
    two, three, four = FLOWS["navigate, growing"]()
    assert len(ids(two)) == 3
    assert ids(three)[:3] == ids(two)
    assert ids(four)[:4] == ids(three)
    assert not any(segment.lasting for segment in four.segments[1:5])


def test_questions_to_a_context_that_grows_share_what_was_there() -> None:
    asks = FLOWS["answer, state"]()
    none, one, two = asks[-6::2]
    assert ids(one)[: len(ids(none))] == ids(none)
    assert ids(two)[: len(ids(one))] == ids(one)
    assert [len(ids(ask)) for ask in (none, one, two)] == [3, 4, 5]


def keys_of(asks: list[ModelRequest]) -> str:
    """Returns one hash over the keys of all calls."""
    keys = hashlib.sha256()
    for ask in asks:
        prefix = prefix_of(
            ask.segments, model="m/x", tenant_id=SCOPE.tenant_id, owner_id=SCOPE.owner_id
        )
        keys.update(call_key(ask, prefix, "m/x", SCOPE))
    return keys.hexdigest()


#: As the ledgers of the releases before have them.
RECORDED = {
    "revise": "04b5319c8f615ee81730ac412e3c120b91098383a6696908b310cbef776bf8e5",
    "revise, in place": "d8f4ee1dfda065d98307bddd85cfdcbbf87212b394168111e1e99f440bd817c4",
    "revise, focused": "ff1253f6f98af0c252022cd3a81cf4a629461b769afeb8a4d679ed8b3979e36b",
    "consolidate": "270f540bca53b294fee6acab50e76f92a361f1d5b32429244fc321defb8efc3c",
    "answer": "07d737f603020f188d1f3f5624fad5de02759b08292895682e908b6fee9990fc",
    "schema": "c3250e95a84c00a3088415f5abbed977e8822a43ef82ea2d001beaa0ab77799d",
    "summarize": "3565b82a1fd11e9bf1412c51dedd871103e280fdbfd8adeea25b2f6da7ef4194",
    "compress": "4d8b88d8f37d603ae2710e8382eda211422d8814d86076af087ac97220673105",
    "navigate": "2c70c765ad15b9f24eaca8381a746e7c1ca9c8cb6e395860344472c4f4926ef1",
    "navigate, several at once": "b906ee993c4f0c2ee2c1f2726b906ecd46e8672d4a37f5a3c99e13074a17a052",
    "navigate, growing": "c83eefce8e21db4409681155dc67086a010f29da9d14e5d1d2750275ce882223",
    "state, steps": "bfdc3e7d7b00906fd18463c957778757df7f86fe879d3dfbf9687648daca02e6",
    "state, vectors": "1c0e01d3ee55df80e9a006f8bcc8e8206cfc5c455fee04c0c3a358e8385736fd",
    "answer, state": "f682588d2e55bf321f65f25013bc0569f0a235905408692dd8c8e77474cdbee3",
    "browse": "7d95dfd3ae9ebb0b7f29d23fc81ba08110ef3f3404253fba56df977cfc63a3b1",
    "answer, whole": "bd11bf124cb50b6190a853d051bc523018083e1396e52193c45d40cb217d6f36",
    "rerank": "b9d9c2b79a7bdbc388a357db51d2ee4cf39cd5bdf5a73052ae6a518171816004",
    "answer, shaped": "9fc6f143322fabfad722af6010516bdef2cff881629ad869221b3fd74d952ec9",
}


@pytest.mark.parametrize("name", FLOWS)
def test_the_keys_of_calls_that_were_made_stay_valid(name: str) -> None:
    assert keys_of(FLOWS[name]()) == RECORDED[name]
