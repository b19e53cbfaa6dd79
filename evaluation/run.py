"""The run of an evaluation: strategy by strategy, documents and questions side by side."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from evaluation.datasets import Document, Question
from evaluation.measures import Measure, score
from evaluation.report import Build, Report, ReportError, Result, failed, result_of
from evaluation.strategies import Failed, Prepared, Strategy, StrategyName
from evaluation.summary import is_right


class Exporter(Protocol):
    """Where the trajectories of right answers go."""

    async def write(self, session: str, results: Sequence[Result]) -> bool:
        """Writes those of a session's results; whether it did."""
        ...


class Run:
    """Asks what a report has no outcome of yet."""

    def __init__(
        self,
        documents: Sequence[Document],
        report: Report,
        *,
        measure: Measure,
        place: str,
        concurrency: int,
        on_result: Callable[[Result], None],
        exporter: Exporter | None = None,
    ) -> None:
        self._documents = documents
        self._report = report
        self._measure = measure
        self._place = place
        self._slots = asyncio.Semaphore(concurrency)
        self._open_documents = asyncio.Semaphore(concurrency)
        self._on_result = on_result
        self._exporter = exporter

    async def go(self, strategies: Mapping[StrategyName, Strategy]) -> None:
        """Runs to the end; failures of questions are results. Raises ReportError."""
        for name, strategy in strategies.items():
            try:
                async with asyncio.TaskGroup() as tasks:
                    for document in self._documents:
                        if left := self._left(name, document):
                            tasks.create_task(self._document(name, strategy, document, left))
            except* ReportError as group:
                # Callers know the error, not the groups that it came in.
                raise _first(group) from None

    def _left(self, name: StrategyName, document: Document) -> list[Question]:
        done = self._report.is_done
        return [one for one in document.questions if not done(name, document.id, one.number)]

    async def _document(
        self, name: StrategyName, strategy: Strategy, document: Document, left: Sequence[Question]
    ) -> None:
        # Fewer documents are open than there are: each is kept in memory while it is.
        async with self._open_documents:
            began = time.monotonic()
            try:
                prepared = await strategy.prepare(document)
            except Failed as error:
                for question in left:
                    self._add(failed(name, document, question, str(error), 0.0))
                return
            self._report.built(
                Build(
                    strategy=name,
                    document=document.id,
                    place=self._place,
                    spent=prepared.spent,
                    seconds=time.monotonic() - began,
                )
            )
            async with asyncio.TaskGroup() as tasks:
                for question in left:
                    tasks.create_task(self._ask(name, strategy, document, prepared, question))
            if self._exporter is not None:
                await self._export(self._exporter, name, document, prepared)

    async def _ask(
        self,
        name: StrategyName,
        strategy: Strategy,
        document: Document,
        prepared: Prepared,
        question: Question,
    ) -> None:
        async with self._slots:
            began = time.monotonic()
            try:
                outcome = await strategy.ask(document, prepared, question)
            except Failed as error:
                seconds = time.monotonic() - began
                self._add(failed(name, document, question, str(error), seconds))
                return
            seconds = time.monotonic() - began
            scores = score(outcome.text, question, self._measure)
            self._add(result_of(name, document, question, prepared, outcome, scores, seconds))

    async def _export(
        self, exporter: Exporter, name: StrategyName, document: Document, prepared: Prepared
    ) -> None:
        mine = [
            one
            for one in self._report.results
            if (one.strategy, one.document, one.session) == (name, document.id, prepared.session)
            and one.has_trajectory
            and not one.exported
            and is_right(one)
        ]
        if mine and await exporter.write(prepared.session, mine):
            for one in mine:
                self._report.add(replace(one, exported=True))

    def _add(self, result: Result) -> None:
        self._report.add(result)
        self._report.save_soon()
        self._on_result(result)


def _first(group: BaseExceptionGroup[ReportError]) -> ReportError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
