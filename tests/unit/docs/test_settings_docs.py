"""The guide to settings has each of them, with its default and with what its comment says."""

import json
import re
from pathlib import Path

from pydantic_core import to_jsonable_python

from service.cli.config import meanings
from service.settings.reading import fields
from tests import ROOT
from tests.unit.settings.test_settings import of_file

GUIDE = ROOT / "docs" / "reference" / "settings.md"


def rows() -> list[str]:
    """Returns the rows of the guide, in the order of the source."""
    found = []
    for name, kind in fields().items():
        if kind.default_factory is not None and kind.default_factory is not dict:
            default = "by user"
        elif (value := kind.get_default(call_default_factory=True)) is None:
            default = "unset"
        else:
            default = f"`{json.dumps(to_jsonable_python(value))}`"
        found.append(f"| `{name}` | {default} | {meanings()[name]} |")
    return found


def test_the_guide_has_every_setting_as_the_source_has_it() -> None:
    told = re.findall(r"^\| `[a-z_.]+` \|.*$", GUIDE.read_text(), re.MULTILINE)
    assert told == rows()


def test_addresses_stand_together() -> None:
    (section,) = (one for one in GUIDE.read_text().split("\n### ") if "\n| `listen` |" in one)
    assert "\n| `metrics_listen` |" in section


def test_every_setting_has_a_meaning_that_fits_a_table() -> None:
    assert not [name for name, meaning in meanings().items() if not meaning or "|" in meaning]


def test_the_guides_file_is_taken(tmp_path: Path) -> None:
    text = GUIDE.read_text().partition("```toml\n")[2].partition("```")[0]
    config = of_file(tmp_path, text)
    assert [one.name for one in config.deployments] == ["gpu-a", "gpu-b"]
    assert config.limits.max_memories == 200
