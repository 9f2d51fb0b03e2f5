"""C++ source to a shared library, by the compiler of the machine."""

import contextlib
import dataclasses
import functools
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from .. import _env
from .cache import cached_file, keep_failed
from .errors import CompilerNotFoundError, compilation_error, joined
from .headers import headers_digest, write_sources
from .key import BuildKey, digest_of

_NAMES = ("c++", "g++", "clang++")

_FLAGS = (
    "-std=c++17",
    # Sums and products are rounded one by one on every machine, so that a replay repeats the
    # recording bit for bit whichever way the compiler arranges the two.
    "-ffp-contract=off",
    # No caller reads errno: square roots become one instruction. Their values stay the same.
    "-fno-math-errno",
    # Loops over lanes become one instruction: before GCC 12, -O2 would not see to it.
    "-ftree-vectorize",
    # Signed integers wrap around, as in XLA.
    "-fwrapv",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-pthread",
    "-pipe",
)
# Compilers differ in how they are asked for this machine's instructions; what refuses both options
# is not asked. Nor is a compiler that the user chose together with such an option.
_NATIVE_FLAGS = (("-march=native",), ("-mcpu=native",), ())
_TARGET_OPTIONS = ("-march=", "-mcpu=")

# What they change is part of a compiler's identity.
_VARIABLES_OF_COMPILERS = (
    "CCC_OVERRIDE_OPTIONS",
    "COMPILER_PATH",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "GCC_EXEC_PREFIX",
    "LIBRARY_PATH",
    "PATH",
    "SDKROOT",
)

_SOURCE = "kernel.cpp"
_LIBRARY = "kernel.so"
_NO_CHANGES: Mapping[str, str] = MappingProxyType({})
_DEFINITION = re.compile(r"[A-Za-z_]\w*(=.*)?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class HostCompiler:
    """A C++ compiler and what it does by default.

    **Arguments:**

    - `path`: of the program.
    - `command`: the words that start it, `path` first; more than one if it was asked for with
      options, as in `CXX="ccache g++"`.
    - `identity`: its version and a digest of all it resolves by itself: the instructions of this
      processor, its include path, the versions of the C and C++ libraries. A cache in a home
      directory that machines share thus never hands one of them instructions that it lacks.
    - `flags`: the options of every compilation, beside how far to optimize.
    """

    path: Path
    command: tuple[str, ...]
    identity: str
    flags: tuple[str, ...]


def host_compiler(choice: str | None = None) -> HostCompiler:
    """The compiler to use: the choice, else `$GRADSOLVE_CXX`, else `$CXX`, else one in `PATH`.

    It is started once to learn its identity, and remembered until the environment changes.

    **Raises:**

    `CompilerNotFoundError` if there is none, or not the one that was asked for.
    """
    return _probe(_find_command(choice), _relevant_environment())


def build_host_library(
    source: str, compiler: HostCompiler, defines: tuple[str, ...] = (), level: str = "-O3"
) -> Path:
    """Compiles a source, or finds what was compiled from it before.

    **Arguments:**

    - `source`: C++ that may include the package's headers, as `"gs/..."`.
    - `compiler`: from `host_compiler`.
    - `defines`: macros, as `"NAME"` or `"NAME=value"`.
    - `level`: how far the compiler optimizes.

    **Returns:**

    The shared library, in the cache.

    **Raises:**

    `CompilationError` with the compiler's own message.
    """
    for definition in defines:
        if not _DEFINITION.fullmatch(definition):
            raise ValueError(f"A macro is defined as NAME or NAME=value, got {definition!r}.")
    flags = (level, *compiler.flags, *(f"-D{definition}" for definition in defines))
    key = BuildKey(
        source=source,
        headers=headers_digest(),
        compiler=compiler.identity,
        flags=flags,
        arch=platform.machine(),
    ).digest()
    command = (*compiler.command, *flags, "-I.", _SOURCE, "-o", _LIBRARY)

    def compile_into(work: Path) -> Path:
        # Fixed names, relative to a private directory: the binary does not depend on its place.
        write_sources(work, _SOURCE, source)
        # What a compiler that is killed leaves in its temporary directory goes with the work's.
        done = _run(command, work, {"TMPDIR": str(work)})
        library = work / _LIBRARY
        if done.problem is None and library.exists():
            return library
        kept = keep_failed(key, work)
        raise compilation_error(
            f"The C++ compiler {compiler.path} {done.problem or 'wrote no library'}.",
            done.stderr + done.stdout,
            f"cd {shlex.quote(str(kept))} && {shlex.join(command)}",
            kept / _SOURCE,
        )

    return cached_file("host", key, ".so", compile_into)


def _find_command(choice: str | None) -> tuple[str, ...]:
    asked = _env.cxx() if choice is None else (choice, "the argument")
    if asked is not None:
        text, origin = asked
        words = _words(text)
        program = shutil.which(words[0]) if words else None
        if program is None:
            raise CompilerNotFoundError(
                f"The C++ compiler {text!r}, asked for by {origin}, was not found. Name one that "
                f"is installed, or none to have {joined(_NAMES)} looked for in PATH."
            )
        return (os.path.abspath(program), *words[1:])
    for name in _NAMES:
        program = shutil.which(name)
        if program is not None:
            return (os.path.abspath(program),)
    raise CompilerNotFoundError(
        f"No C++ compiler was found: {joined(_NAMES)} must be in PATH. Install one (for instance "
        "`apt install g++` or `conda install cxx-compiler`), or let the environment variable "
        "GRADSOLVE_CXX name it."
    )


def _words(command: str) -> list[str]:
    if shutil.which(command):  # a path that contains spaces
        return [command]
    try:
        return shlex.split(command)
    except ValueError:  # a quote without its partner: no such program
        return []


def _relevant_environment() -> tuple[tuple[str, str | None], ...]:
    return tuple((name, os.environ.get(name)) for name in _VARIABLES_OF_COMPILERS)


@functools.lru_cache(maxsize=32)
def _probe(
    command: tuple[str, ...], environment: tuple[tuple[str, str | None], ...]
) -> HostCompiler:
    """Asks a compiler, in one start of it, for its version and all that it resolves by itself.

    It preprocesses a header, whatever the libraries define at that point included, and prints the
    macros (`-dM`): one for each extension of the instruction set, and the versions of libraries.
    Its report (`-v`) has the version, the resolved processor and the include path.
    """
    del environment
    targeted = any(word.startswith(_TARGET_OPTIONS) for word in command[1:])
    first, *others = _NATIVE_FLAGS[-1:] if targeted else _NATIVE_FLAGS
    answer = _ask(command, first)
    for native in others:
        if answer.done.refused:
            answer = _ask(command, native)
    flags, query, done = answer
    if done.problem is not None:
        raise compilation_error(
            f"The C++ compiler {command[0]} {done.problem}.",
            done.stderr,
            shlex.join(query),
            kept=None,
        )
    version = re.search(r"^.*\bversion \d.*$", done.stderr, re.MULTILINE)
    if version is None or "#define" not in done.stdout:
        raise CompilerNotFoundError(
            f"{command[0]} does not describe itself as C++ compilers do: `{shlex.join(query)}` "
            "printed no version or no macros. Let the environment variable GRADSOLVE_CXX name GCC "
            "or Clang."
        )
    identity = f"{version[0].strip()}, {digest_of(done.stdout, done.stderr)}"
    return HostCompiler(Path(command[0]), command, identity, flags)


def _ask(command: tuple[str, ...], native: tuple[str, ...]) -> "_Answer":
    flags = (*_FLAGS, *native)
    query = (*command, *flags, "-v", "-dM", "-E", "-x", "c++", "-include", "cstddef", os.devnull)
    return _Answer(flags, query, _run(query, Path("/")))  # the report names the directory


class _Answer(NamedTuple):
    flags: tuple[str, ...]
    query: tuple[str, ...]
    done: "_Done"


@dataclasses.dataclass(frozen=True)
class _Done:
    problem: str | None  # completes "The compiler ..."
    stdout: str
    stderr: str
    refused: bool = False  # it came to its own end, and failed


def _run(
    command: Sequence[str], directory: Path, environment: Mapping[str, str] = _NO_CHANGES
) -> _Done:
    seconds = _env.compile_timeout()
    try:
        process = subprocess.Popen(
            command,
            cwd=directory,
            # One language for messages, so that the identity does not depend on the user's.
            env={**os.environ, "LC_ALL": "C", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a compiler is several processes, and they end together
        )
    except OSError as error:
        return _Done(f"could not be started: {error.strerror or error}", "", "")
    with process:
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            stdout, stderr = process.communicate()
            problem = (
                f"did not finish within {seconds:g} seconds and was stopped; the environment "
                "variable GRADSOLVE_COMPILE_TIMEOUT allows more"
            )
            return _Done(problem, stdout, stderr)
        except BaseException:  # an interrupt: the compiler, in its own session, did not see it
            _kill_group(process)
            raise
    status = process.returncode
    return _Done(_problem_of(status), stdout, stderr, refused=status > 0)


def _kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _problem_of(returncode: int) -> str | None:
    if returncode == 0:
        return None
    if returncode < 0:
        return f"was ended by signal {-returncode} ({signal.strsignal(-returncode)})"
    return f"failed with status {returncode}"
