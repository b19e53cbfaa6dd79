"""What must be in a package, and what must not."""

import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.metadata import Metadata

#: What may lie in a package, besides what describes it.
_ROOTS = {
    "palimpsest_proto": {"palimpsest", "buf"},
    "palimpsest_sdk": {"palimpsest", "palimpsest_hook"},
    "palimpsest_server": {"service", "storage", "migrations"},
    "palimpsest_evaluation": {"evaluation"},
}
_DESCRIBES = {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO", ".gitignore"}
_WANTED = {
    "palimpsest_proto": [
        "palimpsest/v1/session_service.proto",
        "palimpsest/v1/session_service_pb2_grpc.py",
    ],
    "palimpsest_sdk": ["palimpsest/__init__.py", "palimpsest/py.typed"],
    "palimpsest_server": [
        "service/cli/tasks/lighthouse.txt",
        "migrations/script.py.mako",
        "migrations/schema/00_roles.sql",
    ],
    "palimpsest_evaluation": ["evaluation/cli/questions.py"],
}
#: Of a package; the largest has 1.2 MB.
MAX_BYTES = 3_000_000


def files(package: Path) -> dict[str, bytes]:
    """Returns the files of a wheel or an sdist, which has them in one folder."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            return {one.filename: wheel.read(one) for one in wheel.infolist()}
    with tarfile.open(package) as sdist:
        members = [one for one in sdist.getmembers() if one.isfile()]
        read = {one.name: sdist.extractfile(one) for one in members}
        return {
            name.partition("/")[2]: file.read() for name, file in read.items() if file is not None
        }


def metadata(package: Path) -> Metadata:
    """Returns what a package says of itself. Raises an ExceptionGroup of what is wrong."""
    held = files(package)
    (said,) = (one for one in held if one == "PKG-INFO" or one.endswith(".dist-info/METADATA"))
    return Metadata.from_email(held[said], validate=True)


#: Its sdist is the folder that is the package.
_IS_ITS_FOLDER = "palimpsest_evaluation"


def faults(package: Path) -> Iterator[str]:
    """Yields what is wrong with the contents of a package."""
    held = files(package)
    name = package.name.split("-")[0]
    roots = _ROOTS[name] | (
        {f"{'-'.join(package.name.split('-')[:2])}.dist-info"}
        if package.suffix == ".whl"
        else _DESCRIBES | {"CHANGELOG.md"}
    )
    if name == _IS_ITS_FOLDER and package.suffix != ".whl":
        held = {path if path in roots else f"evaluation/{path}": held[path] for path in held}
    for path in held:
        if path.split("/")[0] not in roots or path.endswith((".pyc", ".binpb")):
            yield f"{package.name}: {path} does not belong there"
    for path in _WANTED[name]:
        if path not in held:
            yield f"{package.name}: {path} is missing"
    if not any(path.endswith("LICENSE") for path in held):
        yield f"{package.name}: LICENSE is missing"
    if package.stat().st_size > MAX_BYTES:
        yield f"{package.name} has {package.stat().st_size} bytes"
    said = metadata(package)
    if said.description_content_type != "text/markdown" or not said.description:
        yield f"{package.name}: its README is not shown"
    if not said.requires_python or said.license_expression != "Apache-2.0":
        yield f"{package.name}: its metadata lack the Python that it needs, or the licence"
