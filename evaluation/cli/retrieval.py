"""What `palimpsest eval search` and `palimpsest eval recall` share: options, questions, service."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import palimpsest
from evaluation.cli.files import (
    check_folders,
    check_new,
    check_service,
    now,
    read_dataset,
    session_name,
    versions,
)
from evaluation.cli.own_service import own_service
from evaluation.datasets import Document
from evaluation.indexing import Indexes
from evaluation.searching import with_evidence
from evaluation.selection import Half, choose, half_of
from evaluation.sessions import Place
from service.cli.output import CommandError
from service.cli.run import StopSignals, read_config
from service.settings.config import Config
from service.telemetry import logs

#: The version of the reports that both write.
FORMAT = 1
MAX_CONCURRENCY = 64
DAY_SECONDS = 86_400.0
#: Messages of failures that are shown.
SHOWN_FAILURES = 5

Dataset = Annotated[Path, typer.Option(help="Documents with questions, JSON Lines.")]
Limit = Annotated[int, typer.Option(min=1, help="Questions, spread over the documents.")]
OnlyHalf = Annotated[
    Half | None, typer.Option(help="Only this half of the documents, by a hash of their ids.")
]
EmbeddingModel = Annotated[
    str, typer.Option(help="provider/name, for vectors; default: the service's.")
]
BaseUrl = Annotated[
    str, typer.Option(help="An OpenAI-compatible endpoint for models named openai/….")
]
Shortest = Annotated[bool, typer.Option(help="Prefer the shortest documents.")]
MostDocuments = Annotated[int, typer.Option(min=0, help="At most so many; 0: any number.")]
Concurrency = Annotated[
    int, typer.Option(min=1, max=MAX_CONCURRENCY, help="Documents at the same time.")
]
Timeout = Annotated[
    float,
    typer.Option(min=1, max=DAY_SECONDS, help="Seconds for one request, or for an index."),
]
Report = Annotated[Path | None, typer.Option(help="A JSON file for all of it.")]
Address = Annotated[
    str, typer.Option(help="HOST:PORT of a service; default: one of its own.", metavar="ADDR")
]
DataDir = Annotated[
    Path | None, typer.Option(help="Where a service of its own keeps its data; else nowhere.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrievalOptions:
    """The options that both commands have."""

    dataset: Path
    half: Half | None
    limit: int
    shortest: bool
    documents: int
    concurrency: int
    timeout_seconds: float
    model: str
    base_url: str
    embedding_model: str
    address: str
    data_dir: Path | None

    def check(self, **files: Path | None) -> Config:
        """Returns the configuration; `files` are to be written. Raises CommandError."""
        check_service(self.address, self.base_url, self.embedding_model, self.data_dir)
        check_folders(**files)
        check_new(**files)
        return read_config(
            model=self.model or None,
            model_base_url=self.base_url or None,
            embedding_model=self.embedding_model or None,
        )

    def embeds(self, config: Config) -> str:
        """Returns the embedding model; "" without one, and for a service at `address`."""
        return "" if self.address else config.embedding_model

    def choose(self) -> tuple[Sequence[Document], str]:
        """Returns documents with the questions that name evidence, and the dataset's digest.

        Raises CommandError.
        """
        read, digest = read_dataset(self.dataset)
        found = with_evidence([one for one in read if self.half in (None, half_of(one))])
        if not any(one.questions for one in found):
            name = self.dataset.name
            where = f"the {self.half} half of {name}" if self.half else name
            raise CommandError(f"{where} names no evidence")
        return choose(found, self.limit, shortest=self.shortest, most=self.documents), digest

    def serve(
        self,
        config: Config,
        run_id: str,
        run: Callable[[Place, Indexes], Awaitable[None]],
    ) -> None:
        """Runs `run` against the service at `address`, or one of its own. Raises CommandError."""
        logs.configure("error", "console")
        stop = StopSignals()

        async def connected(address: str) -> None:
            async with palimpsest.connect(address) as client:
                place = Place(
                    client=client,
                    session_of=lambda document: session_name(run_id, document),
                    timeout_seconds=self.timeout_seconds,
                )
                indexes = Indexes(
                    client,
                    wants_vectors=bool(self.embeds(config)),
                    timeout_seconds=self.timeout_seconds,
                )
                await run(place, indexes)

        if self.address:
            stop.run(connected(self.address))
            return
        with own_service(
            config,
            model=self.model,
            base_url=self.base_url,
            embedding_model=self.embedding_model,
            data_dir=self.data_dir,
        ) as (_, address):
            stop.run(connected(address))

    def head(self, config: Config, digest: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Returns how a report begins; `settings` are those of one of the commands."""
        return {
            "format": FORMAT,
            "created": now(),
            "settings": {
                "dataset": self.dataset.name,
                "dataset_sha256": digest,
                "half": self.half or "",
                "limit": self.limit,
                "shortest": self.shortest,
                "documents": self.documents,
                **settings,
                "embedding_model": self.embeds(config),
                "model": self.model or ("" if self.address else config.model),
            },
            "versions": versions(),
        }
