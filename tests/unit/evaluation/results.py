"""Documents and results for tests of evaluation."""

from typing import Any

from evaluation.datasets import Document, Question
from evaluation.report import Result
from evaluation.strategies import Spent, Walk
from service.domain.log.chunks import Chunk, ChunkKind


def document(name: str, questions: int, **options: Any) -> Document:
    """Returns two chunks, and questions whose answer is their number."""
    return Document(
        id=name,
        chunks=tuple(Chunk(kind=ChunkKind.TEXT, text=text) for text in ("One.", "Two.")),
        questions=tuple(
            Question(number=number, text=f"{number}?", golds=(str(number),), **options)
            for number in range(1, questions + 1)
        ),
    )


def walk(*, reverts: int = 0, valid: int = 2, invalid: int = 0, tokens: int = 100) -> Walk:
    """Returns a navigation of a text of 1,000 tokens."""
    return Walk(
        valid_actions=valid,
        invalid_actions=invalid,
        reverts=reverts,
        leaves_read=1,
        tokens=tokens,
        text_tokens=1000,
    )


def result(number: int, **changes: Any) -> Result:
    """Returns a result of memwalker's that cost two calls."""
    held = {
        "strategy": "memwalker",
        "document": "d",
        "number": number,
        "question": "Who?",
        "golds": ("Ann",),
        "answer": "Ann",
        "spent": Spent(calls=2, input_tokens=10, output_tokens=4),
        "seconds": 1.0,
    }
    return Result(**{**held, **changes})
