"""The directory of the cache: where it is, and whether it can be trusted."""

import atexit
import functools
import os
import shutil
import stat
import tempfile
import warnings
from pathlib import Path

from .. import _env
from .errors import CacheDirectoryError

_NAME = "gradsolve"
_REMEDY = "Set the environment variable GRADSOLVE_CACHE_DIR to a directory of your own."


def cache_directory() -> Path:
    """The directory of compiled kernels; it is created if need be, for its owner alone.

    Code in it is loaded and run, so nobody else may be able to put any there. A user without a
    writable home directory gets a temporary directory for the life of the process, and a warning.

    **Raises:**

    `CacheDirectoryError` if the directory belongs to or is writable by others, or if one that was
    asked for by name cannot be written.
    """
    asked = _env.cache_dir()
    if asked is not None:
        problem = _problem_of_creating(asked)
        if problem is not None:
            raise CacheDirectoryError(
                f"Compiled kernels cannot be kept in GRADSOLVE_CACHE_DIR={asked}: {problem}. Let "
                "the variable name a directory that you can write, or unset it."
            )
        _check_private(asked)
        return asked
    parent = _env.user_cache_dir()
    if parent is None:
        return _temporary_directory("this user has no home directory")
    path = parent / _NAME
    problem = _problem_of_creating(path)
    if problem is not None:
        return _temporary_directory(f"{path}: {problem}")
    _check_private(path)
    return path


def _problem_of_creating(path: Path) -> str | None:
    """Creates the directory; says why it is of no use if it is not."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        return "something that is no directory has its name, or its parent's"
    except OSError as error:
        return error.strerror or str(error)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return "it is not writable"
    return None


def _check_private(path: Path) -> None:
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        raise CacheDirectoryError(
            f"Compiled kernels are not loaded from {path}: it belongs to the user with number "
            f"{status.st_uid}, and this process runs as {os.geteuid()}. {_REMEDY}"
        )
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheDirectoryError(
            f"Compiled kernels are not loaded from {path}: others can write to it (mode "
            f"{mode:04o}). Run `chmod 700 {path}` if nobody did, and delete its contents if you "
            f"are not sure. {_REMEDY}"
        )


@functools.cache  # one directory and one warning for each reason
def _temporary_directory(reason: str) -> Path:
    warnings.warn(
        f"Kernels are compiled anew in every process, because they cannot be kept ({reason}). "
        f"{_REMEDY}",
        stacklevel=2,
    )
    path = Path(tempfile.mkdtemp(prefix=f"{_NAME}-"))
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child runs the handlers too
        shutil.rmtree(path, ignore_errors=True)
