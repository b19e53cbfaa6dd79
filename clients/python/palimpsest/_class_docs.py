"""The docstrings of classes and their fields, for schemas that are made from classes."""

import ast
import dataclasses
import enum
import inspect
import itertools
from collections.abc import Iterator


def class_doc(cls: type) -> str:
    """Returns the docstring that was written for a class; empty when none was."""
    doc = cls.__dict__.get("__doc__") or ""
    return "" if _is_automatic(cls, doc) else inspect.cleandoc(doc)


def field_docs(cls: type) -> dict[str, list[str]]:
    """Returns guidance for fields by name, from metadata and the docstrings under them."""
    docs: dict[str, list[str]] = {}
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            # Python 3.14 has a place of its own for it.
            texts = [getattr(field, "doc", None), *map(field.metadata.get, ("doc", "description"))]
            docs[field.name] = [inspect.cleandoc(text) for text in texts if isinstance(text, str)]
    under: dict[str, str] = {}
    for one in _lineage(cls):
        under.update(_docs_under_fields(one))
    for name, text in under.items():
        docs.setdefault(name, []).append(inspect.cleandoc(text))
    return docs


def _is_automatic(cls: type, doc: str) -> bool:
    """Returns whether `dataclass` made it from the signature, `Notes(a: int)`."""
    if issubclass(cls, enum.Enum):
        # The default of some versions of Python.
        return doc == "An enumeration."
    if not dataclasses.is_dataclass(cls) or not doc.startswith(f"{cls.__name__}("):
        return False
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    return doc.endswith(")") and "\n" not in doc and all(f"{name}:" in doc for name in names)


def _lineage(cls: type) -> Iterator[type]:
    """Yields the classes whose fields a class has, itself last."""
    for base in getattr(cls, "__orig_bases__", ()):
        # A TypedDict forgets what it was made from, but for these (Python 3.12).
        if isinstance(base, type) and base not in cls.__mro__:
            yield from _lineage(base)
    yield from reversed(cls.__mro__)


def _docs_under_fields(cls: type) -> dict[str, str]:
    try:
        source = inspect.getsource(cls)
        # A class within something is indented, but lines of its docstrings need not be.
        tree = ast.parse(f"if True:\n{source}" if source[:1].isspace() else source)
    except (OSError, TypeError, SyntaxError):
        # The class has no source to read: it was made at a prompt, for example, or in C.
        return {}
    match tree.body:
        case [ast.ClassDef(body=body)] | [ast.If(body=[ast.ClassDef(body=body)])]:
            return dict(_pairs(body))
    return {}


def _pairs(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, following in itertools.pairwise(body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as text)),
            ):
                yield name, text
