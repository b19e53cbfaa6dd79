"""A run asks what has no outcome yet, and hides no failure."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from evaluation.datasets import Document, Question
from evaluation.measures import Measure
from evaluation.report import FORMAT, Report, ReportError, Result
from evaluation.run import Exporter, Run
from evaluation.strategies import Failed, Outcome, Prepared, Spent, StrategyName
from tests.unit.evaluation.results import document, result, walk

MEMWALKER = StrategyName.MEMWALKER


class Scripted:
    """Answers each question with its number by default."""

    def __init__(self, tell: Callable[[Document, Question], str] = lambda _, q: f"{q.number}"):
        self.tell = tell
        self.asked: list[tuple[str, int]] = []
        self.under_way = 0
        self.most_under_way = 0

    async def prepare(self, document: Document) -> Prepared:
        if document.id == "broken":
            raise Failed("the tree was not built")
        return Prepared(session=f"s/{document.id}", spent=Spent(calls=3))

    async def ask(self, document: Document, prepared: Prepared, question: Question) -> Outcome:
        assert prepared.session == f"s/{document.id}"
        self.asked.append((document.id, question.number))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        text = self.tell(document, question)
        return Outcome(
            text=text,
            no_answer="" if text else "not_found",
            model="m",
            spent=Spent(calls=1),
            seen=frozenset({1}),
            cited=frozenset({2}),
            answer_id=f"{document.id}-{question.number}",
            walk=walk(),
        )


class Exported:
    """Remembers what it was given."""

    def __init__(self, *, works: bool = True) -> None:
        self.works = works
        self.given: list[tuple[str, list[str]]] = []

    async def write(self, session: str, results: Sequence[Result]) -> bool:
        self.given.append((session, [one.answer_id for one in results]))
        return self.works


def new_report() -> Report:
    head = {"format": FORMAT, "run_id": "r", "settings": {}, "versions": {}}
    return Report.begin(None, head)


async def go(
    strategy: Scripted,
    documents: Sequence[Document],
    report: Report,
    *,
    concurrency: int = 2,
    exporter: Exporter | None = None,
) -> list[Result]:
    heard: list[Result] = []
    run = Run(
        documents,
        report,
        measure=Measure.F1,
        place="p",
        concurrency=concurrency,
        on_result=heard.append,
        exporter=exporter,
    )
    await run.go({MEMWALKER: strategy})
    return heard


async def test_every_question_has_one_outcome() -> None:
    strategy, report = Scripted(), new_report()
    heard = await go(strategy, [document("a", 3), document("b", 2)], report)
    assert sorted(strategy.asked) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]
    assert len(heard) == len(report.results) == 5
    assert all(one.score == 1.0 for one in report.results)
    assert {one.document: one.spent.calls for one in report.builds} == {"a": 3, "b": 3}


async def test_no_more_are_under_way_than_wanted() -> None:
    strategy = Scripted()
    await go(strategy, [document("a", 9), document("b", 9)], new_report(), concurrency=3)
    assert strategy.most_under_way == 3


async def test_evidence_is_of_what_was_shown_and_cited() -> None:
    report = new_report()
    await go(Scripted(), [document("a", 1, evidence=frozenset({2}))], report)
    (only,) = report.results
    assert (only.evidence_shown, only.evidence_cited) == (0.0, 1.0)


async def test_failures_are_results_and_stop_no_other_question() -> None:
    def tell(document: Document, question: Question) -> str:
        if question.number == 1:
            raise Failed("the model refused")
        return "" if question.number == 2 else "3"

    report = new_report()
    heard = await go(Scripted(tell), [document("broken", 2), document("a", 3)], report)
    said = {(one.document, one.number): (one.failure, one.no_answer) for one in heard}
    assert said == {
        ("broken", 1): ("the tree was not built", ""),
        ("broken", 2): ("the tree was not built", ""),
        ("a", 1): ("the model refused", ""),
        ("a", 2): ("", "not_found"),
        ("a", 3): ("", ""),
    }


async def test_a_continued_run_asks_the_rest_and_what_failed() -> None:
    report = new_report()
    report.add(result(1, document="a"))
    report.add(result(2, document="a", failure="it broke"))
    report.add(result(1, document="done"))
    strategy = Scripted()
    await go(strategy, [document("a", 3), document("done", 1)], report)
    assert sorted(strategy.asked) == [("a", 2), ("a", 3)]
    assert [one.document for one in report.builds] == ["a"], "what is done is not built again"


async def test_right_answers_are_exported_once() -> None:
    exported, report = Exported(), new_report()

    def tell(document: Document, question: Question) -> str:
        return "wrong" if question.number == 2 else str(question.number)

    await go(Scripted(tell), [document("a", 3)], report, exporter=exported)
    assert exported.given == [("s/a", ["a-1", "a-3"])]
    await go(Scripted(), [document("a", 4)], report, exporter=exported)
    assert exported.given[1:] == [("s/a", ["a-4"])]


async def test_what_could_not_be_exported_is_not_taken_for_exported() -> None:
    report = new_report()
    await go(Scripted(), [document("a", 1)], report, exporter=Exported(works=False))
    assert [one.exported for one in report.results] == [False]


async def test_a_report_that_cannot_be_written_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: Report) -> None:
        raise ReportError("the disk is full")

    monkeypatch.setattr(Report, "save_soon", refuse)
    with pytest.raises(ReportError, match="the disk is full"):
        await go(Scripted(), [document("a", 3)], new_report())
