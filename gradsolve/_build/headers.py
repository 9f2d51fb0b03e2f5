"""The package's own C++ headers, as text."""

import functools
import importlib.resources
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType

from .key import digest_of

_PACKAGE = __name__.partition(".")[0]


@functools.cache
def headers() -> Mapping[str, str]:
    """Texts by the names under which sources include them, `gs/lanes.h` say, in sorted order.

    They are read once. Compilers are given these texts, not the files, so that what is compiled is
    what the key of a build says, also when a file changes meanwhile or lies in an archive.
    """
    # Sorted, so that the digest is the same on every file system.
    found = dict(sorted(_walk(importlib.resources.files(_PACKAGE).joinpath("csrc"), "")))
    if not found:
        raise FileNotFoundError(
            f"The C++ headers of {_PACKAGE} are missing from its installation (no `csrc/*.h` in "
            f"{importlib.resources.files(_PACKAGE)}). Install {_PACKAGE} again."
        )
    return MappingProxyType(found)


def headers_digest() -> str:
    """Identifies names and contents of all headers."""
    return digest_of(*(part for item in headers().items() for part in item))


def write_sources(directory: Path, name: str, source: str) -> None:
    """Writes a source, and beside it the headers under the names by which it includes them."""
    for path, text in {**headers(), name: source}.items():
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".h"):
            yield f"{prefix}{entry.name}", entry.read_text(encoding="utf-8")
