"""Reads a book into a summary tree, and answers questions with citations.

    python examples/book_reader/book_reader.py
    python examples/book_reader/book_reader.py book.txt --ask "Who left?" --ask "Why?"

A file that was read before is not read again: the producer's name is the text's own.
"""

import argparse
import re
import textwrap
from hashlib import sha256
from pathlib import Path

from palimpsest.sync import Tree, connect

#: A short story of the project's own.
STORY = Path(__file__).parents[2] / "service/cli/tasks/lighthouse.txt"
QUESTIONS = ("Who wanted to leave for the shipyards?", "Who steered the supply boat?")


def chunks_of(text: str) -> list[str]:
    """Returns the paragraphs, with the blank lines after them; the tree cuts long ones."""
    return [part for part in re.split(r"(?<=\n\n)(?=\S)", text) if part.strip()]


def read(tree: Tree, text: str) -> None:
    """Appends what the session does not have yet, and closes the tree at the end of the book."""
    chunks = chunks_of(text)
    if tree.get().info.status != "sealed":
        with tree.session.producer(sha256(text.encode()).hexdigest()) as producer:
            for chunk in chunks[producer.last_acked_sequence :]:
                producer.append(chunk)
        # An open tree answers too; a closed one has a single root.
        tree.seal().wait()
    levels = [level.node_count for level in tree.outline().levels]
    print(f"{len(chunks)} chunks; nodes by level, leaves first: {levels}")


def ask(tree: Tree, query: str) -> None:
    """Prints the answer, the nodes that led to it, and the text that it rests on."""
    answer = tree.ask(query)
    print(f"\nQ: {query}\n{answer.text or 'The book does not say.'}")
    way = dict.fromkeys(event.node for event in tree.trajectory(answer.id) if event.node)
    print(f"  the way: {' -> '.join(way)}")
    for cited in answer.citations:
        print(f"  [{cited.position}] {textwrap.shorten(cited.excerpt, 90)}")


def main() -> None:
    """Reads the file and asks."""
    parser = argparse.ArgumentParser(description="A reader of long texts.")
    parser.add_argument("file", nargs="?", type=Path, default=STORY)
    parser.add_argument("--ask", action="append", metavar="QUESTION")
    given = parser.parse_args()
    text = given.file.read_text()
    with connect() as client:
        digest = sha256(text.encode()).hexdigest()[:8]
        session = client.create_session(f"book-{given.file.stem}-{digest}", exist_ok=True)
        # Small numbers suit a short story; leave them out for a book.
        small = len(text) < 50_000
        tree = session.create_tree(
            "book",
            exist_ok=True,
            segment_tokens=128 if small else 0,
            summary_tokens=48 if small else 0,
        )
        read(tree, text)
        for query in given.ask or QUESTIONS:
            ask(tree, query)


if __name__ == "__main__":
    main()
