"""Checks the names of fields and classes in a schema, and makes up names.

A schema is shown as class source, so its names are Python's. Python compares names in
the normal form NFKC, so that is the only form that is the same when it is read again.
"""

import itertools
import keyword
import unicodedata
from collections.abc import Iterable

from service.domain.prism.schemas.tree import Field, RecordType, Scalar, Type, inner_types
from service.domain.values.paths import MAX_KEY_CHARACTERS

#: A class of that name would be taken for the type.
RESERVED = frozenset(one.value for one in Scalar)


def is_name(text: str) -> bool:
    """Returns whether a field or a class can be called that in Python."""
    return (
        text.isidentifier()
        and not keyword.iskeyword(text)
        and unicodedata.is_normalized("NFKC", text)
    )


def field_fault(name: str) -> str:
    """Returns why a field cannot have a name, as a sentence; empty when it can."""
    if len(name) > MAX_KEY_CHARACTERS:
        return f"a name has at most {MAX_KEY_CHARACTERS} characters"
    if is_name(name):
        return ""
    fault = f"{name!r} cannot be the name of a field in Python"
    better = "_".join(_words(name))
    if better and not is_name(better):
        better += "_"
        better = better if is_name(better) else "_" + better
    if len(better) > MAX_KEY_CHARACTERS or not is_name(better):
        return fault
    return f"{fault}; call it {better}"


def class_name(text: str) -> str:
    """Returns the name of a class for a title: `Opening hours` gives `OpeningHours`.

    A name stays as it is. Empty when the text has nothing to make a name of.
    """
    if is_name(text) and len(text) <= MAX_KEY_CHARACTERS:
        return text
    return _joined(_words(text))


def class_name_for(field: str) -> str:
    """Returns the name of a class that has none but the field it is used in."""
    return _joined(word for part in _words(field) for word in part.split("_") if word)


class RecordNames:
    """The names of the records of one schema: one name for one record.

    A name that the author wrote precedes one that is made up; a name that is taken
    gets a number; records that say the same under the same name are one.
    """

    def __init__(self, *, root: str, written: Iterable[str]) -> None:
        """`root` is the memory's own name, `written` are those of definitions."""
        self._root = root
        self._written = {root, *written} - {""}
        self._taken: dict[str, RecordType] = {}

    def record(
        self, *, written: Iterable[str], made: str, fields: tuple[Field, ...], doc: str, root: bool
    ) -> RecordType:
        """Returns a record under the best of its names. Any of them may be empty."""
        names = [name for name in written if name and name not in RESERVED]
        made = made or "Record"
        if not names and made not in self._written:
            names.append(made)
        base = names[0] if names else made
        numbered = (f"{base}{number}" for number in itertools.count(2))
        for name in itertools.chain(names, numbered):
            found = self._taken.get(name)
            if found is not None and found.doc == doc and _same_fields(found.fields, fields):
                return found
            if found is None and (root or name != self._root):
                break
        record = RecordType(name=name, fields=fields, doc=doc)
        self._taken[name] = record
        return record


def _same_fields(one: tuple[Field, ...], other: tuple[Field, ...]) -> bool:
    return [(f.name, f.doc) for f in one] == [(f.name, f.doc) for f in other] and all(
        _same(a.type, b.type) for a, b in zip(one, other, strict=True)
    )


def _same(one: Type, other: Type) -> bool:
    """Returns whether types are equal: True is not 1, and records are not compared in depth."""
    if isinstance(one, RecordType):
        # Those within were compared when they were named.
        return one is other
    inner, others = inner_types(one), inner_types(other)
    if not inner:
        # That of a record, which has parts within parts, would be written out whole.
        return type(one) is type(other) and repr(one) == repr(other)
    same_shape = type(one) is type(other) and len(inner) == len(others)
    return same_shape and all(map(_same, inner, others))


def _joined(words: Iterable[str]) -> str:
    name = "".join(word[:1].upper() + word[1:] for word in words)
    name = unicodedata.normalize("NFKC", name)[: MAX_KEY_CHARACTERS // 2]
    if not name.isidentifier():
        name = f"_{name}"
    if keyword.iskeyword(name):
        name += "_"
    return name if name != "_" and is_name(name) else ""


def _words(text: str) -> list[str]:
    """Returns the parts of a text that can stand in a name."""
    text = unicodedata.normalize("NFKC", text[:MAX_KEY_CHARACTERS])
    kept = "".join(char if f"_{char}".isidentifier() else " " for char in text)
    return kept.split()
