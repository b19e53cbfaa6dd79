"""The rule of segments, for every flow that asks a model."""

import hashlib
from itertools import combinations

import pytest

from service.domain.dciso import wording
from service.domain.flows import ModelAsk, Purpose, Segment, SegmentKind
from service.domain.state import asking as state
from service.llm.gateway import call_key
from service.llm.prefix_cache import prefix_of
from tests.unit.domain.flow_asks import FLOWS, SCOPE


def has_unchanging_bases(ask: ModelAsk) -> bool:
    """Whether its bases are stored texts, which never change; a memory's is rewritten."""
    return ask.purpose is Purpose.NAVIGATE or ask.template == state.ANSWER


def ids(ask: ModelAsk) -> tuple[bytes, ...]:
    return prefix_of(
        ask.segments, model="m/x", tenant_id=SCOPE.tenant_id, owner_id=SCOPE.owner_id
    ).ids


def common(one: ModelAsk, other: ModelAsk) -> int:
    """How many of their first segments, as texts, two asks share."""
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


def keys_of(asks: list[ModelAsk]) -> str:
    """One hash over the keys of all calls."""
    keys = hashlib.sha256()
    for ask in asks:
        prefix = prefix_of(
            ask.segments, model="m/x", tenant_id=SCOPE.tenant_id, owner_id=SCOPE.owner_id
        )
        keys.update(call_key(ask, prefix, "m/x", SCOPE))
    return keys.hexdigest()


#: As the journals of the releases before have them.
RECORDED = {
    "revise": "0c8dfc8f4451b3aa29bcd512555e4f99ef79188963ca9baebfac2000eb5e02ac",
    "revise, structured": "984562d0e0e2ac1bd75b858066b352b28d9e353c8361470b6c60929999c055af",
    "revise, in place": "a5916f94a42b6fcad8e5b0a237b58258eb5e534248e20dd1c65753669ceff788",
    "consolidate": "739b25263adace7f4a37c2e2162fcaad862bd62c3d73f50d5c0cfb23d01be0a8",
    "answer": "7c94f840533eebd57bc3f909e25af607c2b8102726f844bdfdbba0a9cfb59320",
    "schema": "fdf5371198ff62364c1740abaa90b641e62cd9ac68a0cd84d6a497d431267afd",
    "summarize": "e9aecbd24a02f927776bf64fc7dc57f81519f62b3bad7306cccd4867ac8fa61f",
    "compress": "188e7db6e06f915f1f0fc058963946ca5db39f66905c7cea1b4b8f56d06e9854",
    "navigate": "4decb1b83ec3d53f202b05ffd567653310e9f731aa742f53c58d28d280bba62e",
    "navigate, structured": "f34a88304dbd618230295980646ccd44699bd4b02ffb2c49f8df04c1dca3f23c",
    "navigate, several at once": "de3c1dab65c1bd69ddb84319f039e64052bfe49263b6252e4ddc06343dfca86c",
    "navigate, growing": "0e357a30a2a399166a388b249de98185230ed78124d272ba5d2f1e3995db3ebc",
    "state, steps": "421dc85ec995bc08012d48f0b6b5c043157253dd680a322c1874e67b0cbd1310",
    "state, vectors": "58f569eb8e18f43a26bb78bdc77fa7655b340289dd3aa1df6d4a6984a75883cb",
    "answer, state": "5023ea52c05fd9f60c501afa5f0934475112030b19e64adb1b742bfa893ae124",
    "browse": "4e707153edd40e9721c9a244ff6b6a4dcedc796fd13414f7857921d444d38ff4",
    "answer, whole": "f28a45e538cbc12e3da19fb795989df74cfb3122cc93087cc7a43f310b683aac",
    "rerank": "b9d9c2b79a7bdbc388a357db51d2ee4cf39cd5bdf5a73052ae6a518171816004",
    "answer, shaped": "3ee0bec6eb784ca9d19dd7be7e4e289d2cd0148eac256a4d6eb0db54d1df1891",
}


@pytest.mark.parametrize("name", FLOWS)
def test_the_keys_of_calls_that_were_made_stay_valid(name: str) -> None:
    assert keys_of(FLOWS[name]()) == RECORDED[name]
