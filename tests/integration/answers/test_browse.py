"""Questions to the log, browsed with a scripted model on a real database."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from service.domain.answers.browse.pieces import Browsed, Frame, Span
from service.domain.answers.browse.spec import BrowseAction, BrowseOption, BrowseRequest
from service.domain.answers.trajectory import EventKind, NoAnswer
from service.domain.prompting.ends import End
from service.domain.prompting.flows import FetchingFlow, ModelRequest, Purpose, Segment, SegmentKind
from service.domain.values.memory_specs import ReaderName
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.providers.transport import Completion
from service.usecases.answers.readers import browse as browsing
from service.usecases.answers.readers.browsed_log import BrowseHit
from storage.answers.answers import StoredCitation
from storage.calls import calls
from storage.engine.database import Database
from tests.integration.support.asked import (
    WINDOW,
    Reply,
    Words,
    ask_log,
    path,
    tokens_of,
)
from tests.integration.support.browse import KEY, write
from tests.integration.support.ranks import Ranked
from tests.integration.support.scripted import CONFIG, Script, answerer, die_in_call, fail_at
from tests.integration.support.stored_answers import read_told, store_question
from tests.support.contents import GuessContent, PieceContent, ShapedAnswer, content_of
from tests.support.gateways import gateway

#: Each takes about 60 tokens: two and no more make a piece of the window.
TEXTS = tuple(
    f"In year {year} the miller had {year} sacks of flour in the mill by the river. "
    f"The cat of year {year} caught {year * 7} mice{' and a mouse' if year == 5 else ''}. "
    "Nobody in the village had seen a cat like this one before, and the miller was glad of it; "
    "he gave it milk every evening, and it slept on the sacks in the warm room below the roof."
    for year in range(1, 13)
)
INDEPENDENT = BrowseOption.INDEPENDENT


class Parallel(Script):
    """Counts how many calls are under way at once."""

    now = most = 0
    #: After the first, which is alone, they wait until there have been so many.
    wanted = 1

    async def complete(self, *arguments: Any) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            while self.asked and self.most < self.wanted:
                await asyncio.sleep(0.01)
            # One more would begin meanwhile.
            await asyncio.sleep(0.05)
            return await super().complete(*arguments)
        finally:
            self.now -= 1


class Refusing(Script):
    """A model that reads nothing."""

    async def complete(self, *arguments: Any) -> Completion:
        made = await super().complete(*arguments)
        return replace(made, text="", end=End.REFUSAL, said="I cannot read that")


async def browsed(
    database: Database, reply: Reply, *, up_to: int = len(TEXTS), **wanted: Any
) -> tuple[Any, Any, Script]:
    item = await ask_log(database, up_to=up_to, **wanted)
    script = Script(reply=reply)
    await answerer(database, gateway(script, database)).make(item)
    return *await read_told(database, item), script


async def test_each_piece_is_read_and_what_is_said_is_cited(database: Database) -> None:
    await write(database, TEXTS)
    stored, events, script = await browsed(database, Words("mouse"), option=INDEPENDENT)
    assert (stored.status, stored.failure, stored.no_answer) == ("complete", "", None)
    assert stored.text == "The cat of year 5 caught 35 mice and a mouse"
    kinds = [one.kind for one in events]
    pieces = kinds.count(EventKind.PIECE)
    assert pieces >= 4
    assert kinds == [
        EventKind.UNDERSTANDING,
        *[EventKind.PIECE] * pieces,
        EventKind.AGGREGATION,
        EventKind.END,
    ]
    assert [one.node_id for one in events[1:-2]] == [f"p.{n}" for n in range(1, pieces + 1)]
    assert [one.ordinal for one in events] == list(range(1, pieces + 4))
    (taken,) = [one for one in events if one.action.value == "append"]
    start = TEXTS[4].index("The cat of")
    assert stored.citations == (
        StoredCitation(
            position=5,
            path="",
            revision=0,
            excerpt=stored.text,
            node_id=taken.node_id,
            from_position=taken.from_position,
            to_position=taken.to_position,
            from_character=start,
            to_character=start + len(stored.text),
        ),
    )
    assert taken.from_position <= 5 <= taken.to_position
    async with database.transaction(DEFAULT_TENANT) as tx:
        made = f"answer:{stored.answer_id}"
        (line,) = (await calls.usage_of(tx, KEY, [made]))[made]
    assert (line.purpose, line.calls) == ("browse", len(script.asked))
    assert stored.statistics is None


@pytest.mark.parametrize("limit", [1, 3])
async def test_as_many_pieces_are_read_at_once_as_may_be(database: Database, limit: int) -> None:
    await write(database, TEXTS)
    item = await ask_log(database, up_to=len(TEXTS), option=INDEPENDENT)
    script = Parallel(reply=Words("mouse"))
    script.wanted = limit
    config = CONFIG.model_copy(update={"browse_concurrency": limit})
    await answerer(database, gateway(script, database), config).make(item)
    stored, _ = await read_told(database, item)
    assert stored.status == "complete"
    assert script.most == limit


async def test_who_answers_early_saves_calls(database: Database) -> None:
    await write(database, TEXTS)
    scan = await browsed(database, Words("year 1 "), option=BrowseOption.SCAN)
    independent = await browsed(database, Words("year 1 "), option=INDEPENDENT)
    assert scan[0].text.startswith("In year 1 the miller")
    assert path(scan[1]) == [
        ("understanding", "", "none"),
        ("piece", "p.1", "answer"),
        ("end", "", "answer"),
    ]
    assert len(scan[2].asked) == 2 < len(independent[2].asked)


@pytest.mark.parametrize("option", [one for one in BrowseOption if one is not BrowseOption.AUTO])
async def test_no_prompt_passes_the_window(database: Database, option: BrowseOption) -> None:
    await write(database, [*TEXTS, "mouse " * 3000])
    reply = Words("mouse", option=BrowseOption.CARRY)
    stored, _, script = await browsed(database, reply, up_to=13, option=option, max_calls=60)
    assert stored.status == "complete", stored.failure
    assert max(map(tokens_of, script.asked)) <= WINDOW


async def test_the_model_s_own_window_counts_when_it_is_smaller(database: Database) -> None:
    await write(database, TEXTS)
    item = await ask_log(database, up_to=12, option=INDEPENDENT, window_tokens=4096)
    script = Script(reply=Words("mouse"))
    await answerer(database, gateway(script, database), window=700).make(item)
    stored, _ = await read_told(database, item)
    assert stored.status == "complete", stored.failure
    assert max(map(tokens_of, script.asked)) <= 700


def too_long(query: str, frames: Sequence[Frame], **terms: Any) -> FetchingFlow[Browsed]:
    yield [
        ModelRequest(
            purpose=Purpose.BROWSE,
            template="t/1",
            segments=(Segment(kind=SegmentKind.TASK, text="word " * WINDOW),),
            max_output_tokens=1,
        )
    ]
    raise AssertionError("nothing is asked")


async def test_a_flow_that_passes_the_window_fails_for_good(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(database, TEXTS)
    monkeypatch.setattr(browsing, "browse", too_long)
    stored, events, script = await browsed(database, Words("mouse"))
    assert (stored.status, script.asked, events) == ("failed", [], [])
    assert "more than the window of 768" in stored.failure


async def test_a_place_that_the_log_does_not_have_is_not_cited(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(database, TEXTS)

    def made_up(query: str, frames: Sequence[Frame], **terms: Any) -> FetchingFlow[Browsed]:
        yield []
        long = Span(position=2, from_character=0, to_character=len(TEXTS[1]), text=TEXTS[1])
        no = Span(position=1, from_character=0, to_character=3, text="Out")
        return Browsed(text="x", no_answer=None, spans=(no, long), calls=0)

    monkeypatch.setattr(browsing, "browse", made_up)
    stored, _, _ = await browsed(database, Words("mouse"))
    assert [(one.position, one.to_character) for one in stored.citations] == [(2, len(TEXTS[1]))]
    assert TEXTS[1].startswith(stored.citations[0].excerpt)


async def test_what_retrieval_names_is_read_first(database: Database) -> None:
    await write(database, TEXTS)
    item = await ask_log(database, up_to=12, option=BrowseOption.RANK, pieces=1, rerank=True)
    ranks = Ranked([BrowseHit(position=p, from_character=0) for p in (1, 9, 5)])
    script = Script(reply=Words("mouse"))
    maker = answerer(database, gateway(script, database), ranks=lambda *_: ranks)
    await maker.make(item)
    stored, events = await read_told(database, item)
    (retrieval,) = [one for one in events if one.kind is EventKind.RETRIEVAL]
    assert len(retrieval.shown) == 1
    assert stored.citations[0].position == 5, "a model orders what is found"
    assert stored.citations[0].node_id == retrieval.shown[0]
    assert [rerank for *_, rerank in ranks.asked] == [False, True]


async def test_a_log_without_text_has_no_answer(database: Database) -> None:
    await write(database, TEXTS)
    stored, events, script = await browsed(database, Words("mouse"), up_to=0)
    assert (stored.no_answer, script.asked) == (NoAnswer.EMPTY, [])
    assert (stored.text, stored.failure) == ("", "There is no answer: the log has no text yet.")
    assert path(events) == [("end", "", "none")]
    missing, events, _ = await browsed(database, Words("zebra"), option=INDEPENDENT)
    assert (missing.text, missing.citations) == ("", ())
    assert missing.failure == "There is no answer in the log."
    assert events[-1].text == "not_found"
    few, _, _ = await browsed(database, Words("zebra"), option=INDEPENDENT, max_calls=3)
    assert few.no_answer is NoAnswer.STEP_LIMIT


async def test_a_text_that_is_refused_is_no_log_without_an_answer(database: Database) -> None:
    await write(database, TEXTS)
    item = await ask_log(database, up_to=12, option=BrowseOption.SCAN)
    script = Refusing()
    await answerer(database, gateway(script, database)).make(item)
    stored, events = await read_told(database, item)
    assert (stored.status, stored.no_answer) == ("complete", NoAnswer.UNREADABLE)
    assert "refused the text: I cannot read that" in stored.failure
    assert {one.end for one in events if one.template} == {End.REFUSAL}


async def test_a_question_with_options_has_one_of_them(database: Database) -> None:
    await write(database, TEXTS)
    item = await store_question(
        database,
        None,
        "What of the zebra?",
        revision=0,
        applied_position=12,
        reader=ReaderName.DCISO,
        browsing=BrowseRequest(window_tokens=WINDOW, option=BrowseOption.SCAN),
        response_schema={"type": "string", "enum": ["it sleeps", "it runs"]},
    )

    def reply(ask: ModelRequest, number: int) -> str:
        if isinstance(content_of(ask), GuessContent):
            return '{"option": "B"}'
        if isinstance(content_of(ask), ShapedAnswer):
            return f'"{content_of(ask).answer}"'
        return Words("zebra")(ask, number)

    script = Script(reply=reply)
    await answerer(database, gateway(script, database)).make(item)
    stored, events = await read_told(database, item)
    assert (stored.text, stored.value, stored.no_answer) == ("it runs", "it runs", None)
    assert (stored.citations, stored.guessed, stored.statistics) == ((), True, None)
    (end,) = [one for one in events if one.kind is EventKind.END]
    assert end.reasoning == "a guess by the model among the options: not_found"


async def test_what_came_behind_the_question_is_not_read(database: Database) -> None:
    await write(database, TEXTS)
    stored, events, script = await browsed(database, Words("mouse"), up_to=4, option=INDEPENDENT)
    assert stored.no_answer is NoAnswer.NOT_FOUND
    assert max(one.to_position for one in events) == 4
    read = [
        part
        for ask in script.asked
        if isinstance(content_of(ask), PieceContent)
        for part, _ in content_of(ask).parts
    ]
    assert read == [1, 2, 3, 4]


@pytest.mark.parametrize("model", ["test/reading", ""])
async def test_the_question_may_name_the_model(database: Database, model: str) -> None:
    await write(database, TEXTS)
    stored, _, _ = await browsed(database, Words("mouse"), model=model)
    assert stored.model == (model or CONFIG.model)


async def test_without_understanding_there_is_no_call_for_it(database: Database) -> None:
    await write(database, TEXTS)
    actions = frozenset({BrowseAction.APPEND, BrowseAction.ANSWER})
    stored, events, _ = await browsed(database, Words("mouse"), actions=actions)
    assert events[0].kind is EventKind.PIECE
    assert stored.status == "complete"


async def test_a_failed_try_goes_on_where_it_stopped(database: Database) -> None:
    await write(database, TEXTS)
    item = await ask_log(database, up_to=12, option=BrowseOption.SCAN)
    script = Script(reply=Words("year 9 "))
    maker = answerer(database, gateway(script, database))
    fail_at(script, 3)
    await maker.make(item)
    stored, before = await read_told(database, item)
    assert (stored.status, stored.attempts, len(before)) == ("pending", 0, 2)
    await maker.make(item)
    stored, events = await read_told(database, item)
    assert stored.status == "complete", stored.failure
    assert events[:2] == before
    assert [event.ordinal for event in events] == list(range(1, len(events) + 1))
    prompts = [ask.text for ask in script.asked]
    assert len(prompts) == len(set(prompts)) + 1, "only the one that failed is asked again"


async def test_a_worker_that_dies_is_followed_by_another_that_reads_the_same(
    database: Database,
) -> None:
    await write(database, TEXTS)
    item = await ask_log(database, up_to=12, option=BrowseOption.RANK, pieces=3)
    first, second = Script(reply=Words("mouse")), Script(reply=Words("mouse"))

    ranks = Ranked([BrowseHit(position=p, from_character=0) for p in (5, 1, 9)])
    other = Ranked([BrowseHit(position=p, from_character=0) for p in (12, 2, 7)])
    config = CONFIG.model_copy(update={"browse_concurrency": 1})
    before_it = answerer(database, gateway(first, database), config, ranks=lambda *_: ranks)
    release = await die_in_call(first, 2, before_it.make(item))
    _, before = await read_told(database, item)
    assert path(before) == [
        ("understanding", "", "none"),
        ("retrieval", "", "none"),
        *(("piece", f"p.{number}", "none") for number in (5, 1, 9)),
    ]
    # What was under way returns, and sends nothing; by now retrieval finds more.
    release.set()
    behind_it = answerer(database, gateway(second, database), config, ranks=lambda *_: other)
    await behind_it.make(item)
    stored, events = await read_told(database, item)
    assert stored.status == "complete", stored.failure
    assert events[: len(before)] == before
    assert other.asked == []
    assert stored.citations[0].position == 5
    asked = [ask.text for ask in (*first.asked, *second.asked)]
    assert len(asked) == len(set(asked)), "nothing is paid for twice"


async def test_two_workers_at_once_store_each_event_once(database: Database) -> None:
    await write(database, TEXTS)
    item = await ask_log(database, up_to=12, option=INDEPENDENT)
    scripts = [Script(reply=Words("mouse")) for _ in range(2)]
    await asyncio.gather(
        *(answerer(database, gateway(script, database)).make(item) for script in scripts)
    )
    stored, events = await read_told(database, item)
    assert stored.status == "complete"
    assert [event.ordinal for event in events] == list(range(1, len(events) + 1))
    asked = [ask.text for script in scripts for ask in script.asked]
    assert len(asked) == len(set(asked))
