"""The examples of docs/guides/prism.md, "Schemas"."""

import importlib
import json
import re
from pathlib import Path

import pytest

from palimpsest import schema_fields
from service.domain.prism.schemas.json_source import parse_json_schema
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import Schema, render
from service.domain.values.errors import SchemaInvalid
from tests.support.guides import section

PAGE = section("prism", "Schemas")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
#: Cells in backticks; a bar within them is escaped.
ROWS = re.findall(r"^\| `(\{.*\})` \| `(/.*)` \|$", PAGE, re.MULTILINE)


def read(language: str, text: str, folder: Path) -> Schema:
    """Returns the schema of a block; that of its class Museum if it is a module."""
    if language == "json":
        return parse_json_schema(text)
    if text.startswith("class"):
        return parse_source(text)
    name = f"example_{len(list(folder.iterdir()))}"
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    museum = importlib.import_module(name).Museum
    return parse_json_schema(schema_fields(museum)["json_schema"])


def test_the_examples_give_one_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    schemas = [read(language, text, tmp_path) for language, text in BLOCKS]
    assert len(schemas) == 4
    for schema in schemas:
        assert render(schema) == render(schemas[0])
        assert schema == schemas[0]


def test_the_table_has_the_refusals() -> None:
    assert len(ROWS) == 8
    for properties, answer in ROWS:
        with pytest.raises(SchemaInvalid) as refused:
            parse_json_schema(json.dumps({"properties": json.loads(properties)}))
        assert refused.value.message == answer
