"""Prints what the locks install, as CycloneDX JSON and as a list of licences, and checks these.

`make sbom` runs it with the packages of requirements/image.lock; it needs no network. Of the image
itself, with Debian's packages, deploy/image/sbom.py makes a list of its own.
"""

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from packageurl import PackageURL
from packaging.utils import canonicalize_name
from sbom import SERVICE, needed, python_component, python_licenses, valid_json

ROOT = Path(__file__).parents[2]
#: What an installation may have, besides what only tests and tools need.
LOCKS = ("server", "embedded")
ALLOWED = ROOT / "requirements/licences.toml"
_PIN = re.compile(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==(\S+)(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
#: Separate licences that can be chosen from, and licences that all apply.
_CHOICES, _PARTS = re.compile(r"\s+OR\s+"), re.compile(r"\s+AND\s+")


def main() -> None:
    """Writes both lists; fails for a licence that is not allowed, and an invalid list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, required=True, help="site-packages")
    parser.add_argument("--into", type=Path, required=True, help="a folder for both lists")
    options = parser.parse_args()
    found = {
        canonicalize_name(one.name): one for one in distributions(path=[str(options.packages)])
    }
    hashes = dict(_locked())
    # Those of other platforms are in a lock, and not here.
    parts = {name: found[name] for name in sorted(hashes) if name in found}
    licences = {name: _licences(one) for name, one in parts.items()}
    options.into.mkdir(parents=True, exist_ok=True)
    (options.into / "sbom.cdx.json").write_text(_bill(parts, hashes, found[SERVICE]))
    lines = [f"{name} {parts[name].version}: {text}\n" for name, text in licences.items()]
    (options.into / "licences.txt").write_text("".join(lines))
    refused = [line.strip() for line in _refused(licences)]
    print(f"{len(parts)} packages: {options.into}/sbom.cdx.json, licences.txt")
    if refused:
        sys.exit("not allowed by requirements/licences.toml:\n" + "\n".join(refused))


def _locked() -> Iterator[tuple[str, list[str]]]:
    """Yields names, with the SHA-256 of their files."""
    for lock in LOCKS:
        text = (ROOT / f"requirements/{lock}.lock").read_text()
        for name, _, rest in _PIN.findall(text):
            yield canonicalize_name(name), re.findall(r"--hash=sha256:([0-9a-f]{64})", rest)


def _licences(found: Distribution) -> str:
    names = [
        str(getattr(one, "value", None) or getattr(one, "id", None) or one.name)
        for one in python_licenses(found)
    ]
    return " AND ".join(sorted(names)) or "unknown"


def _refused(licences: Mapping[str, str]) -> Iterator[str]:
    """Yields packages whose licence is not allowed; of alternatives one is enough."""
    rules = tomllib.loads(ALLOWED.read_text())
    allowed, same, packages = set(rules["allowed"]), rules["same"], rules["packages"]
    for name, said in licences.items():
        text = packages.get(name, same.get(said, said))
        choices = [_PARTS.split(one) for one in _CHOICES.split(text)]
        if not any(all(part.strip() in allowed for part in one) for one in choices):
            yield f"{name}: {text}"
    for name in sorted(set(packages) - set(licences)):
        yield f"{name}: it is named, and not installed; remove it"


def _bill(
    parts: Mapping[str, Distribution], hashes: Mapping[str, list[str]], service: Distribution
) -> str:
    components = {
        # Where a release has several files, it is not known which one is installed.
        name: python_component(one, hashes[name] if len(hashes[name]) == 1 else ())
        for name, one in parts.items()
    }
    root = Component(
        type=ComponentType.APPLICATION,
        bom_ref=f"pypi:{SERVICE}",
        name=SERVICE,
        version=service.version,
        purl=PackageURL("pypi", name=SERVICE, version=service.version),
    )
    purls = "\n".join(str(one.purl) for one in components.values())
    bom = Bom(
        components=components.values(),
        serial_number=uuid5(NAMESPACE_URL, f"{root.purl}\n{purls}"),
        metadata=BomMetaData(
            component=root,
            # The same locks give the same bytes.
            timestamp=datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC),
        ),
    )
    for name, one in {SERVICE: service, **parts}.items():
        known = {**components, SERVICE: root}
        bom.register_dependency(known[name], [known[n] for n in needed(one, parts)])
    return valid_json(bom) + "\n"


if __name__ == "__main__":
    main()
