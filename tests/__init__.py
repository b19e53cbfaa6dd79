"""The tests, and what is needed to run them."""

from pathlib import Path

#: The folder of the repository.
ROOT = Path(__file__).resolve().parent.parent
