"""Compiled kernels on disk, found by the digest of what they were compiled from.

The binary of a key is the file `<digest of the key>/<digest of the binary><suffix>`: its own name
says what it must contain. One rename publishes it, so no process sees half an entry and there is
no second file that could disagree; a file that was damaged later is seen by its name and built
again. Two processes that build one key at once publish the same name, or two names that are both
right. Files in use are never written to: a rename replaces the name, not the file behind it.
"""

import collections
import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .directory import cache_directory

BUILD_COUNTS: collections.Counter[str] = collections.Counter()
"""How many compilations this process really did, by kind of compiler (`"host"`, `"cuda"`)."""

_WORK_PREFIX = "work-"
_FAILED = "failed"
# Nothing compiles this long: what a work directory of this age belonged to was killed.
_ABANDONED_SECONDS = 24 * 3600.0

_guard = threading.Lock()  # of the three below
_key_locks: dict[str, threading.Lock] = {}
_verified: set[Path] = set()


def cached_file(
    kind: str, key_digest: str, suffix: str, compile_into: Callable[[Path], Path]
) -> Path:
    """The file compiled for a key, from the cache if it is there and undamaged.

    **Arguments:**

    - `kind`: the name under which a compilation is counted.
    - `key_digest`: identifies what is compiled and how.
    - `suffix`: of the file's name.
    - `compile_into`: makes the file in the private directory that it is given.
    """
    with _lock_of(key_digest):  # threads that want the same file wait for one of them to make it
        root = cache_directory()
        entry = root / key_digest
        found = _find(entry, suffix)
        if found is not None:
            return found
        _count(kind)
        with _work_directory(root) as work:
            made = compile_into(work)
            published = entry / (_content_digest(made) + suffix)
            entry.mkdir(mode=0o700, exist_ok=True)
            os.replace(made, published)
        with _guard:
            _verified.add(published)
        return published


def keep_failed(key_digest: str, work: Path) -> Path:
    """Moves the sources of a failed compilation to where they stay, and returns that place."""
    kept = cache_directory() / _FAILED / key_digest
    kept.parent.mkdir(mode=0o700, exist_ok=True)
    # The source of this key was kept before, by this or by another process: it is the same.
    with contextlib.suppress(OSError):
        os.rename(work, kept)
        work.mkdir(mode=0o700)  # its owner is going to remove it
    return kept


def _find(entry: Path, suffix: str) -> Path | None:
    try:
        candidates = sorted(path for path in entry.iterdir() if path.suffix == suffix)
    except FileNotFoundError:
        return None
    for path in candidates:
        with _guard:
            if path in _verified:
                return path
        with contextlib.suppress(OSError):  # unreadable is damaged
            if _content_digest(path) == path.stem:
                with _guard:
                    _verified.add(path)
                return path
    return None


def _content_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _work_directory(root: Path) -> Iterator[Path]:
    _remove_abandoned(root)
    work = Path(tempfile.mkdtemp(dir=root, prefix=_WORK_PREFIX))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _remove_abandoned(root: Path) -> None:
    for path in root.glob(f"{_WORK_PREFIX}*"):
        with contextlib.suppress(OSError):  # its owner, or another process, was faster
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(path)


def _lock_of(key_digest: str) -> threading.Lock:
    with _guard:
        return _key_locks.setdefault(key_digest, threading.Lock())


def _count(kind: str) -> None:
    with _guard:
        BUILD_COUNTS[kind] += 1
