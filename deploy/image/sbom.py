"""Prints what an image holds as CycloneDX JSON: Python's distributions and Debian's packages.

Made of what is installed, not of what was asked for. The same image gives the same bytes: the time
is SOURCE_DATE_EPOCH, the serial number follows from the parts. Runs in the build stage only.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SERVICE = "palimpsest-server"
#: Licenses by the classifiers of distributions that say it in no other way.
CLASSIFIED = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
}
_licenses = LicenseFactory()


def main() -> None:
    """Prints the list, and fails where it is not valid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, required=True, help="site-packages")
    parser.add_argument("--system", type=Path, required=True, help="where Debian's status is")
    parser.add_argument("--report", type=Path, action="append", default=[], help="of pip install")
    options = parser.parse_args()
    installed = {
        canonicalize_name(found.name): found
        for found in distributions(path=[str(options.packages)])
    }
    hashes = dict(pair for report in options.report for pair in _hashes(report))
    python = {
        name: python_component(found, [hashes[name]]) for name, found in sorted(installed.items())
    }
    service = python.pop(SERVICE)
    service.type = ComponentType.APPLICATION
    system = list(_system_components(options.system))
    if not any(component.name.startswith("python3") for component in system):
        system.append(_interpreter())
    components = [*python.values(), *system]
    parts = "\n".join(sorted(str(component.purl) for component in components))
    bom = Bom(
        components=components,
        serial_number=uuid5(NAMESPACE_URL, f"{service.purl}\n{parts}"),
        metadata=BomMetaData(
            component=service,
            timestamp=datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC),
        ),
    )
    everything = {**python, SERVICE: service}
    for name, found in installed.items():
        bom.register_dependency(
            everything[name], [everything[one] for one in needed(found, installed)]
        )
    print(valid_json(bom))


def valid_json(bom: Bom) -> str:
    """Returns the text of a list of parts; exits where it is not valid."""
    text: str = JsonV1Dot6(bom).output_as_string(indent=1)
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if fault is not None:
        sys.exit(f"the list of parts is no valid CycloneDX: {fault}")
    return text


def _hashes(report: Path) -> Iterator[tuple[str, str]]:
    """Yields the SHA-256 of each wheel that pip installed."""
    for one in json.loads(report.read_text())["install"]:
        archive = one["download_info"]["archive_info"]
        sha256 = archive.get("hashes", {}).get("sha256") or archive["hash"].partition("=")[2]
        yield canonicalize_name(one["metadata"]["name"]), sha256


def python_component(found: Distribution, hashes: Sequence[str]) -> Component:
    """Returns a distribution as a part, with the SHA-256 of the file that it is from."""
    name = canonicalize_name(found.name)
    recorded = [file for file in found.files or () if ".." not in file.parts]
    left_out = sum(not Path(str(found.locate_file(file))).exists() for file in recorded)
    return Component(
        type=ComponentType.LIBRARY,
        bom_ref=f"pypi:{name}",
        name=found.name,
        version=found.version,
        description=found.metadata.get("Summary"),
        purl=PackageURL("pypi", name=name, version=found.version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in hashes],
        licenses=python_licenses(found),
        properties=[Property(name="palimpsest:files_left_out", value=str(left_out))]
        if left_out
        else [],
    )


def python_licenses(found: Distribution) -> list[License]:
    """Returns the licences that a distribution's metadata name."""
    said = found.metadata.get("License-Expression") or found.metadata.get("License") or ""
    # Some hold the whole text there.
    if said and "\n" not in said and len(said) < 80:
        return [_licenses.make_from_string(said)]
    classified = [
        classifier.rpartition(" :: ")[2]
        for classifier in found.metadata.get_all("Classifier") or []
        if classifier.startswith("License :: ")
    ]
    if not classified and said:
        classified = [said.split("\n")[0]]
    return [_licenses.make_from_string(CLASSIFIED.get(name, name)) for name in classified]


def needed(found: Distribution, installed: Mapping[str, Distribution]) -> list[str]:
    """Returns the distributions that one asks for and that are here, those of extras included."""
    names = {canonicalize_name(Requirement(text).name) for text in found.requires or []}
    return sorted(names & installed.keys())


def _system_components(system: Path) -> Iterator[Component]:
    release = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
        if "=" in line
    )
    distro = f"{release['ID']}-{release.get('VERSION_ID', '').strip(chr(34))}"
    status = (system / "var/lib/dpkg/status").read_text()
    for paragraph in status.strip().split("\n\n"):
        package = HeaderParser().parsestr(paragraph)
        if package["Status"].split()[2] != "installed":
            continue
        source = (package["Source"] or package["Package"]).split()[0]
        qualifiers = {"arch": package["Architecture"], "distro": distro}
        if source != package["Package"]:
            qualifiers["upstream"] = source
        yield Component(
            type=ComponentType.LIBRARY,
            bom_ref=f"deb:{package['Package']}",
            name=package["Package"],
            version=package["Version"],
            purl=PackageURL(
                "deb", release["ID"], package["Package"], package["Version"], qualifiers
            ),
            licenses=_system_licenses(system / "usr/share/doc" / package["Package"] / "copyright"),
        )


def _system_licenses(copyright_file: Path) -> list[License]:
    """Returns the licenses that a machine-readable file names; of the others it is not known."""
    if not copyright_file.is_file():
        return []
    text = copyright_file.read_text(errors="replace")
    if not text.startswith("Format:"):
        return []
    names = {name.strip() for name in re.findall(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE)}
    return [_licenses.make_with_name(name) for name in sorted(names)]


def _interpreter() -> Component:
    version = ".".join(map(str, sys.version_info[:3]))
    return Component(
        type=ComponentType.PLATFORM,
        bom_ref="generic:python",
        name="python",
        version=version,
        purl=PackageURL("generic", name="python", version=version),
        licenses=[_licenses.make_with_id("PSF-2.0")],
    )


if __name__ == "__main__":
    main()
