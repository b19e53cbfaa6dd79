"""Checks values against response schemas, by the jsonschema library."""

import importlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from service.domain.answers.response_schemas import DIALECTS, check_pattern, parts, read_schema

#: Keywords that one check may look at: a schema may ask much of each of many values.
MAX_STEPS = 30_000
#: Characters of faults that count as a step: a fault repeats the value that it is about.
FAULT_STEP_CHARACTERS = 64
#: Seconds of the processor's that the patterns of a schema may search one value; they can take
#: exponential time. A machine that has other things to do is no fault of the value.
PATTERN_SECONDS = 0.2
#: Characters of a fault: values and schemas are repeated in it.
MAX_FAULT_CHARACTERS = 500

_DIALECT_NAMES = ("Draft202012Validator", "Draft201909Validator", "Draft7Validator")


class TooCostly(Exception):
    """Checking a value would take too long; the message is one sentence."""


def read_form(text: str) -> dict[str, Any]:
    """Parses a schema. Raises ValueError with a sentence."""
    schema = read_schema(text)
    library: Any = importlib.import_module("jsonschema")
    try:
        _dialect(schema).check_schema(schema)
    except library.SchemaError as error:
        raise ValueError(f"the schema is no JSON Schema: {_said(error)}") from error
    for _, part in parts(schema):
        if "pattern" in part:
            _compiled(part["pattern"])
    return schema


def checker(schema: Mapping[str, Any]) -> Callable[[Any], str]:
    """Returns a check, which returns what is wrong with a value: a sentence, empty when it fits."""
    library: Any = importlib.import_module("jsonschema")
    # Without a registry of ours the library would ask the network for what it does not know.
    registry = importlib.import_module("referencing").Registry()
    dialect = _dialect(schema)

    def fault(value: Any) -> str:
        validator = _bounded(dialect)(schema, registry=registry)
        try:
            found = library.exceptions.best_match(validator.iter_errors(value))
        except (TooCostly, RecursionError) as error:
            return str(error) if isinstance(error, TooCostly) else "it is nested too deeply"
        return "" if found is None else _said(found)

    return fault


def _dialect(schema: Mapping[str, Any]) -> Any:
    named = schema.get("$schema", DIALECTS[0]).rstrip("#")
    return getattr(importlib.import_module("jsonschema"), _DIALECT_NAMES[DIALECTS.index(named)])


def _bounded(dialect: Any) -> Any:
    """Returns the validator of a dialect for one value, with bounds on its steps and patterns."""
    library: Any = importlib.import_module("jsonschema")
    left = MAX_STEPS

    def take(steps: int) -> None:
        nonlocal left
        left -= steps
        if left < 0:
            raise TooCostly("checking it against the schema takes too many steps")

    def counted(check: Any) -> Any:
        def run(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
            take(1)
            for error in check(validator, wanted, value, schema) or ():
                take(len(error.message) // FAULT_STEP_CHARACTERS)
                yield error

        return run

    def is_boolean(_checker: Any, value: Any) -> bool:
        # Asked of each part that is looked through for what it has evaluated, too, and that
        # is not checked by a keyword.
        take(1)
        return isinstance(value, bool)

    checks = {**dialect.VALIDATORS, "pattern": _patterns(), "uniqueItems": _unique}
    return library.validators.extend(
        dialect,
        {keyword: counted(check) for keyword, check in checks.items()},
        type_checker=dialect.TYPE_CHECKER.redefine("boolean", is_boolean),
    )


def _unique(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
    # The library compares what it cannot sort one by one: each with each.
    library: Any = importlib.import_module("jsonschema")
    if not wanted or not validator.is_type(value, "array"):
        return
    if len({json.dumps(one, sort_keys=True) for one in value}) < len(value):
        yield library.ValidationError(f"{value!r} has non-unique elements")


def _patterns() -> Any:
    """Returns the check of `pattern`, with one time for all strings of a value."""
    library: Any = importlib.import_module("jsonschema")
    # Now, so that the first value does not pay for it.
    importlib.import_module("regex")
    left = PATTERN_SECONDS

    def check(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
        nonlocal left
        if not validator.is_type(value, "string"):
            return
        begin = time.thread_time()
        try:
            if left <= 0:
                raise TimeoutError
            found = _compiled(pattern).search(value, timeout=left)
        except TimeoutError as error:
            raise TooCostly(f"searching it for the pattern {pattern!r} takes too long") from error
        left -= time.thread_time() - begin
        if found is None:
            yield library.ValidationError(f"{value!r} does not match {pattern!r}")

    return check


def _compiled(pattern: str) -> Any:
    check_pattern(pattern)
    expressions: Any = importlib.import_module("regex")
    try:
        return expressions.compile(pattern)
    except (expressions.error, OverflowError, RecursionError) as error:
        raise ValueError(f"the pattern {pattern!r} cannot be read: {error}") from error


def _said(error: Any) -> str:
    """Returns a fault of the library in one line, with its place."""
    place = "".join(f"/{step}" for step in error.absolute_path)
    said = " ".join(str(error.message).split())
    whole = f"at {place}: {said}" if place else said
    return whole[:MAX_FAULT_CHARACTERS]
