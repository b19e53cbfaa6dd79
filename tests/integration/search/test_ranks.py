"""Retrieval for answers that are browsed, by the real search on a real database."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from service.domain.answers.browse.spec import BrowseOption
from service.domain.answers.trajectory import EventKind
from service.domain.search.reranking import NoOrder
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.answers.readers.ranks import SearchRanks
from service.usecases.search.search import Searcher, SearchQuery
from storage.engine.database import Database
from tests.integration.answers.test_browse import TEXTS
from tests.integration.support.asked import WINDOW, Words, ask_log
from tests.integration.support.browse import write
from tests.integration.support.scripted import CONFIG, Script, answerer
from tests.integration.support.stored_answers import read_told
from tests.support.gateways import gateway


class Orders:
    """A reranker that turns the order round, or cannot order."""

    def __init__(self, *, able: bool = True) -> None:
        self.able = able
        self.asked: list[tuple[Sequence[str], dict[str, Any]]] = []

    async def order(self, query: str, texts: Sequence[str], **how: Any) -> Sequence[int]:
        self.asked.append((texts, how))
        if not self.able:
            raise NoOrder("no reply held an order")
        return range(len(texts))[::-1]


async def ranked(
    database: Database,
    orders: Orders,
    query: str,
    *,
    up_to: int = 12,
    word: str = "mouse",
    **wanted: Any,
) -> tuple[Any, tuple[str, ...]]:
    searcher = Searcher(database, None, orders.order, CONFIG)
    item = await ask_log(
        database, up_to=up_to, query=query, option=BrowseOption.RANK, pieces=2, **wanted
    )
    script = Script(reply=Words(word))
    ranks = partial(SearchRanks, searcher)
    await answerer(database, gateway(script, database), ranks=ranks).make(item)
    stored, events = await read_told(database, item)
    assert stored.status == "complete", stored.failure
    (retrieval,) = [one for one in events if one.kind is EventKind.RETRIEVAL]
    return stored, retrieval.shown


async def test_the_pieces_whose_words_fit_are_read(database: Database) -> None:
    await write(database, [*TEXTS, "A mouse sings.", *TEXTS, "The mouse sings again."])
    orders = Orders()
    stored, shown = await ranked(database, orders, "Which mouse sings?", up_to=26)
    assert {one.position for one in stored.citations} <= {5, 13, 18, 26}
    assert len(shown) == 2
    assert orders.asked == []
    # What came after the question is not found.
    _, before = await ranked(database, orders, "Which mouse sings?", up_to=13)
    assert before != shown


async def test_a_model_orders_them_within_the_window(database: Database) -> None:
    await write(database, TEXTS)
    orders = Orders()
    _, plain = await ranked(database, orders, "a mouse in year 5")
    _, ordered = await ranked(database, orders, "a mouse in year 5", rerank=True, model="test/m")
    assert plain != ordered
    ((texts, how),) = orders.asked
    assert len(texts) > 2
    assert (how["window_tokens"], how["model"]) == (WINDOW, "test/m")
    assert how["scope"].occasion.startswith("answer:")


async def test_without_an_order_the_search_s_own_stands(database: Database) -> None:
    await write(database, TEXTS)
    orders = Orders(able=False)
    _, plain = await ranked(database, orders, "a mouse in year 5")
    _, tried = await ranked(database, orders, "a mouse in year 5", rerank=True)
    assert len(orders.asked) == 1
    assert tried == plain


async def test_of_one_long_chunk_the_piece_that_has_the_words_is_read(database: Database) -> None:
    text = " ".join([*TEXTS * 6, "The otter sings.", *TEXTS * 2])
    await write(database, [text])
    stored, shown = await ranked(database, Orders(), "Which otter sings?", up_to=1, word="otter")
    assert shown[0] != "p.1"
    assert "The otter sings." in stored.text
    assert {one.node_id for one in stored.citations} <= set(shown)


#: More words than a search takes, before the code that it is about.
CODE_QUESTION = (
    "Complete the code below.\n\nKeep to these rules: "
    + " ".join(f"r{number}" for number in range(80))
    + "\n\ndef report(readings):\n    for reading in readings:\n        show(convert_fahrenheit("
)


async def test_a_question_of_many_lines_is_retrieved_as_the_search_ranks_it(
    database: Database,
) -> None:
    texts = [f"def function_{number}(value):\n    return value + {number}" for number in range(40)]
    texts[22] = "def convert_fahrenheit(reading):\n    return reading * 9 / 5 + 32"
    await write(database, texts)
    # What task understanding makes of such a question is often no more than its first line.
    stored, shown = await ranked(
        database,
        Orders(),
        CODE_QUESTION,
        up_to=40,
        word="convert",
        window_tokens=2048,
        rewritten_query="complete the code",
    )
    assert {one.position for one in stored.citations} == {23}
    assert "def convert_fahrenheit" in stored.text
    # The piece of the chunk that a client's search and recall rank first comes first.
    searcher = Searcher(database, None, Orders().order, CONFIG)
    page = await searcher.find(DEFAULT_TENANT, "s", SearchQuery(query=CODE_QUESTION))
    assert page.found[0].position == 23
    (cited,) = {one.node_id for one in stored.citations}
    assert shown[0] == cited
    line = CODE_QUESTION.partition("\n")[0]
    by_line = await searcher.find(DEFAULT_TENANT, "s", SearchQuery(query=line))
    assert 23 not in {one.position for one in by_line.found}
