"""Every environment variable that gradsolve reads, each by one function.

An argument beats a variable, a variable beats the default. A variable that is set to the empty
string counts as unset. Variables are read when they are needed, never at import, so a change made
by the program itself is seen by the next build.

| Variable                    | Meaning                                    | Default             |
|-----------------------------|--------------------------------------------|---------------------|
| `GRADSOLVE_CACHE_DIR`       | directory of the compiled kernels          | see the next row    |
| `XDG_CACHE_HOME`            | they are in its subdirectory `gradsolve`   | `~/.cache`          |
| `GRADSOLVE_CXX`             | C++ compiler of the CPU kernels            | `CXX`               |
| `CXX`                       | the same, as other build systems read it   | one found in `PATH` |
| `GRADSOLVE_COMPILE_TIMEOUT` | seconds after which a compiler is stopped  | 600                 |
"""

import math
import os
from pathlib import Path

_DEFAULT_COMPILE_TIMEOUT = 600.0


def cache_dir() -> Path | None:
    """`GRADSOLVE_CACHE_DIR`, an absolute path; `~` is expanded.

    **Raises:**

    `ValueError` for a relative path: the cache would move with the working directory.
    """
    value = os.environ.get("GRADSOLVE_CACHE_DIR", "")
    if not value:
        return None
    path = _expanded(value)
    if path is None or not path.is_absolute():
        raise ValueError(
            f"The environment variable GRADSOLVE_CACHE_DIR must be an absolute path, got {value!r}."
        )
    return path


def user_cache_dir() -> Path | None:
    """`XDG_CACHE_HOME`, else `~/.cache`; `None` for a user without a home directory.

    The XDG base directory specification has programs ignore a relative path.
    """
    value = os.environ.get("XDG_CACHE_HOME", "")
    if value and Path(value).is_absolute():
        return Path(value)
    return _expanded("~/.cache")


def cxx() -> tuple[str, str] | None:
    """The C++ compiler asked for, and the variable that asks: `GRADSOLVE_CXX`, else `CXX`."""
    for variable in ("GRADSOLVE_CXX", "CXX"):
        value = os.environ.get(variable, "").strip()
        if value:
            return value, variable
    return None


def compile_timeout() -> float:
    """`GRADSOLVE_COMPILE_TIMEOUT` in seconds.

    **Raises:**

    `ValueError` unless the variable is a positive, finite number.
    """
    value = os.environ.get("GRADSOLVE_COMPILE_TIMEOUT", "")
    if not value:
        return _DEFAULT_COMPILE_TIMEOUT
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(
            "The environment variable GRADSOLVE_COMPILE_TIMEOUT must be a positive number of "
            f"seconds, got {value!r}."
        )
    return seconds


def _expanded(path: str) -> Path | None:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no HOME, and no entry in the password database
        return None
