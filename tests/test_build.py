"""Compiling kernels for the host, and the cache that keeps them."""

import concurrent.futures
import ctypes
import dataclasses
import itertools
import os
import platform
import shlex
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gradsolve import _env
from gradsolve._build import (
    BUILD_COUNTS,
    BuildKey,
    CacheDirectoryError,
    CompilationError,
    CompilerNotFoundError,
    HostCompiler,
    build_host_library,
    cache,
    headers,
    host_compiler,
)
from gradsolve._build.directory import cache_directory

_ROOT = Path(__file__).parent.parent
_SOURCE = """
#ifndef VALUE
#define VALUE 7
#endif
extern "C" __attribute__((visibility("default"))) int value() { return VALUE; }
"""
_VARIABLES = ("GRADSOLVE_CACHE_DIR", "GRADSOLVE_CXX", "GRADSOLVE_COMPILE_TIMEOUT", "CXX")

_is_root = os.geteuid() == 0


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch) -> Path:
    """An empty cache, and no variable from outside."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "cache"
    monkeypatch.setenv("GRADSOLVE_CACHE_DIR", str(path))
    return path


@pytest.fixture
def forget(monkeypatch):
    """Makes this process as ignorant of the files in the cache as a new one is."""
    return lambda: monkeypatch.setattr(cache, "_verified", set())


@pytest.fixture
def compiler() -> HostCompiler:
    return host_compiler()


def _script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{textwrap.dedent(body)}")
    path.chmod(0o755)
    return path


def _compiler_that(path: Path, body: str) -> HostCompiler:
    """A compiler that describes itself as the real one does, and then does something else."""
    describe = 'case "$*" in *-dM*) exec c++ "$@";; esac\n'
    return host_compiler(str(_script(path, describe + textwrap.dedent(body))))


def _value(library: Path) -> int:
    return ctypes.CDLL(str(library)).value()


def _builds(directory: Path) -> int:
    return sum(1 for _ in directory.glob("*/*.so"))


# The cache


def test_second_build_is_found(compiler, directory, forget):
    before = BUILD_COUNTS["host"]
    library = build_host_library(_SOURCE, compiler)
    assert _value(library) == 7
    assert library.is_relative_to(directory)
    assert build_host_library(_SOURCE, compiler) == library
    forget()
    assert build_host_library(_SOURCE, compiler) == library
    assert BUILD_COUNTS["host"] == before + 1


def test_headers_are_found(compiler):
    name = next(iter(headers.headers()))
    source = f'#if !__has_include("{name}")\n#error\n#endif\n{_SOURCE}'
    assert _value(build_host_library(source, compiler)) == 7


def test_directories_are_private(compiler, directory):
    library = build_host_library(_SOURCE, compiler)
    for path in (directory, library.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {path.name for path in directory.iterdir()} == {library.parent.name}


def test_binary_does_not_depend_on_the_place(compiler, tmp_path, monkeypatch):
    # Two caches, two private directories: the names of the files are the digests of their contents.
    first = build_host_library(_SOURCE, compiler)
    monkeypatch.setenv("GRADSOLVE_CACHE_DIR", str(tmp_path / "another"))
    second = build_host_library(_SOURCE, compiler)
    assert first != second
    assert first.name == second.name


@pytest.mark.parametrize("content", [b"", b"half", b"garbage"])
def test_damaged_entry_is_built_again(compiler, forget, content):
    library = build_host_library(_SOURCE, compiler)
    whole = library.read_bytes()
    library.unlink()  # nothing may write into a file that other tests' processes have loaded
    library.write_bytes(whole[: len(whole) // 2] if content == b"half" else content)
    forget()
    before = BUILD_COUNTS["host"]
    again = build_host_library(_SOURCE, compiler)
    assert again.read_bytes() == whole
    assert BUILD_COUNTS["host"] == before + 1


def test_foreign_files_are_not_loaded(compiler, forget):
    library = build_host_library(_SOURCE, compiler)
    # Sorted first; their names are not the digests of their contents.
    (library.parent / f"{'0' * 64}.so").write_bytes(library.read_bytes())
    (library.parent / "00.so").mkdir()
    forget()
    assert build_host_library(_SOURCE, compiler) == library


def test_removed_entry_is_built_again(compiler):
    library = build_host_library(_SOURCE, compiler)
    library.unlink()
    assert _value(build_host_library(_SOURCE, compiler)) == 7


def test_files_are_replaced_not_written_to(compiler, forget):
    # A file may be loaded by other processes: they keep what they have.
    library = build_host_library(_SOURCE, compiler)
    library.unlink()
    library.write_bytes(b"damaged")
    forget()
    with library.open("rb") as file:
        assert _value(build_host_library(_SOURCE, compiler)) == 7
        assert file.read() == b"damaged"


def test_threads_share_one_compilation(compiler):
    before = BUILD_COUNTS["host"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        libraries = list(pool.map(lambda _: build_host_library(_SOURCE, compiler), range(8)))
    assert len(set(libraries)) == 1
    assert BUILD_COUNTS["host"] == before + 1


_PROCESS = """
import ctypes, pathlib, sys, time

from gradsolve._build import BUILD_COUNTS, build_host_library, host_compiler

assert not any(name.startswith(("cuda.bindings", "cuda.core")) for name in sys.modules)
own, *others = map(pathlib.Path, sys.argv[1:])
compiler = host_compiler()
own.touch()
while not all(other.exists() for other in others):
    time.sleep(0.005)
library = build_host_library(SOURCE, compiler)
print(BUILD_COUNTS["host"], ctypes.CDLL(str(library)).value(), library)
"""


def _start(*ready: Path) -> subprocess.Popen[str]:
    code = f"SOURCE = {_SOURCE!r}\n{_PROCESS}"
    command = [sys.executable, "-c", code, *map(str, ready)]
    return subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)


def _result(process: subprocess.Popen[str]) -> list[str]:
    stdout, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return stdout.split(maxsplit=2)


def test_processes_at_once_and_after(tmp_path, directory, monkeypatch):
    # Slow enough that both are compiling when the first one is done.
    slow = _script(tmp_path / "slow", 'case "$*" in *-dM*) ;; *) sleep 1;; esac\nexec c++ "$@"\n')
    monkeypatch.setenv("GRADSOLVE_CXX", str(slow))
    ready = tmp_path / "one", tmp_path / "two"
    racing = [_start(*ready), _start(*reversed(ready))]
    results = [_result(process) for process in racing]
    assert [result[:2] for result in results] == [["1", "7"], ["1", "7"]]
    assert results[0] == results[1]
    assert _builds(directory) == 1
    # A process that comes later compiles nothing.
    assert _result(_start(tmp_path / "three")) == ["0", *results[0][1:]]


def test_abandoned_work_is_removed(compiler, directory):
    directory.mkdir(mode=0o700)
    old, young = directory / "work-old", directory / "work-young"
    for path in (old, young):
        path.mkdir()
        (path / "kernel.cpp").touch()
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    build_host_library(_SOURCE, compiler)
    assert not old.exists()
    assert young.exists()


# The directory of the cache


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_directory_that_others_can_write_is_refused(compiler, directory, mode):
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(CacheDirectoryError, match=f"mode {mode:04o}.*chmod 700"):
        build_host_library(_SOURCE, compiler)
    assert list(directory.iterdir()) == []


def test_directory_that_others_can_read_is_accepted(compiler, directory):
    directory.mkdir()
    directory.chmod(0o755)
    assert _value(build_host_library(_SOURCE, compiler)) == 7


@pytest.mark.skipif(not _is_root, reason="only root can give a directory away")
def test_directory_of_someone_else_is_refused(compiler, directory):
    directory.mkdir(mode=0o700)
    os.chown(directory, 12345, -1)
    with pytest.raises(CacheDirectoryError, match="belongs to the user with number 12345"):
        build_host_library(_SOURCE, compiler)


def test_directory_asked_for_must_be_usable(compiler, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRADSOLVE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(CacheDirectoryError, match=r"cannot be kept in GRADSOLVE_CACHE_DIR="):
        build_host_library(_SOURCE, compiler)


def test_relative_directory_is_refused(monkeypatch):
    monkeypatch.setenv("GRADSOLVE_CACHE_DIR", "cache")
    with pytest.raises(ValueError, match="must be an absolute path, got 'cache'"):
        cache_directory()


def test_default_directories(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GRADSOLVE_CACHE_DIR", "~/mine")
    assert cache_directory() == tmp_path / "mine"
    monkeypatch.setenv("GRADSOLVE_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "gradsolve"
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache_directory() == tmp_path / ".cache" / "gradsolve"
    assert stat.S_IMODE(cache_directory().stat().st_mode) == 0o700


def test_without_a_home_a_temporary_directory_serves(compiler, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.delenv("GRADSOLVE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"cannot be kept .*no directory.*GRADSOLVE_CACHE_DIR"):
        library = build_host_library(_SOURCE, compiler)
    assert _value(library) == 7
    assert build_host_library(_SOURCE, compiler) == library  # warnings are errors: no second one


@pytest.mark.skipif(_is_root, reason="root can write everywhere")
def test_read_only_home(compiler, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o500)
    monkeypatch.delenv("GRADSOLVE_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(home))
    with pytest.warns(UserWarning, match=r"cannot be kept .*Permission denied"):
        assert _value(build_host_library(_SOURCE, compiler)) == 7


# Which compiler


def test_precedence_of_compilers(tmp_path, monkeypatch):
    by_cxx, by_own, by_argument = (
        _script(tmp_path / name, 'exec c++ "$@"\n') for name in ("cxx", "own", "argument")
    )
    found = host_compiler()
    assert found.path.name == "c++"
    monkeypatch.setenv("CXX", str(by_cxx))
    assert host_compiler().path == by_cxx
    monkeypatch.setenv("GRADSOLVE_CXX", str(by_own))
    assert host_compiler().path == by_own
    assert host_compiler(str(by_argument)).path == by_argument
    monkeypatch.setenv("GRADSOLVE_CXX", "")
    monkeypatch.setenv("CXX", " ")
    assert host_compiler() is found  # it is asked once


def test_compiler_with_options(tmp_path, monkeypatch):
    spaced = _script(tmp_path / "my c++", 'exec c++ "$@"\n')
    assert host_compiler(str(spaced)).command == (str(spaced),)
    monkeypatch.setenv("CXX", f"{shlex.quote(str(spaced))} -DVALUE=5")
    compiler = host_compiler()
    assert compiler.command == (str(spaced), "-DVALUE=5")
    assert _value(build_host_library(_SOURCE, compiler)) == 5


@pytest.mark.parametrize("name", ["no-such-compiler", "g++ 'unbalanced", "''"])
@pytest.mark.parametrize("variable", ["GRADSOLVE_CXX", "CXX", None])
def test_missing_compiler_that_was_asked_for(monkeypatch, variable, name):
    if variable is not None:
        monkeypatch.setenv(variable, name)
    with pytest.raises(CompilerNotFoundError, match=f"asked for by {variable or 'the argument'}"):
        host_compiler(None if variable else name)


def test_no_compiler_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerNotFoundError, match=r"c\+\+, g\+\+ or clang\+\+ must be in PATH"):
        host_compiler()


def test_program_that_is_no_compiler(tmp_path):
    silent = _script(tmp_path / "silent", "exit 0\n")
    with pytest.raises(CompilerNotFoundError, match="does not describe itself"):
        host_compiler(str(silent))
    broken = _script(tmp_path / "broken", "echo no license >&2; exit 3\n")
    with pytest.raises(CompilationError, match=r"(?s)failed with status 3.*no license.*-dM"):
        host_compiler(str(broken))


def test_refused_native_option(tmp_path):
    refuse = """
    for option in "$@"; do
        case "$option" in {}) echo "unsupported: $option" >&2; exit 1;; esac
    done
    exec c++ "$@"
    """
    some = host_compiler(str(_script(tmp_path / "some", refuse.format("-march=*|-mcpu=*"))))
    assert not any("native" in flag for flag in some.flags)
    assert _value(build_host_library(_SOURCE, some)) == 7
    calls = tmp_path / "calls"
    count = f'echo "$@" >> {calls}\nfor a in "$@"; do [ "$a" = -mcpu=native ] && exec c++; done\n'
    other = _script(tmp_path / "other", count + "exit 1\n")
    with pytest.raises(CompilationError):
        host_compiler(str(other))
    tried = [line for line in calls.read_text().splitlines() if "-dM" in line]
    assert ["-march=native" in line for line in tried] == [True, False, False]
    assert ["-mcpu=native" in line for line in tried] == [False, True, False]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names processors of that family")
def test_identity_knows_the_instructions():
    chosen = [host_compiler(f"c++ -march={name}") for name in ("x86-64", "haswell")]
    assert chosen[0].identity != chosen[1].identity
    assert chosen[0].flags == chosen[1].flags  # the user's choice is not followed by another
    assert "-march=native" in host_compiler().flags


# Failures


def test_refused_source(compiler, directory):
    source = f"{_SOURCE}\nint wrong() {{ return undefined_name; }}\n"
    message = ""
    for _ in range(2):  # the second failure finds the source of the first
        with pytest.raises(CompilationError) as caught:
            build_host_library(source, compiler)
        message = str(caught.value)
        assert f"The C++ compiler {compiler.path} failed with status 1." in message
        assert "undefined_name" in message
        kept = Path(message.rpartition("kept in ")[2])
        assert kept.read_text() == source
    # The command is complete: it fails in the same way when it is pasted into a shell.
    command = next(line for line in message.splitlines() if line.startswith("The command was: "))
    command = command.removeprefix("The command was: ")
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "undefined_name" in done.stderr
    assert _builds(directory) == 0
    assert list(directory.glob("work-*")) == []


def test_long_messages_are_cut(tmp_path):
    talker = _compiler_that(tmp_path / "talker", "seq 20000 >&2; exit 1\n")
    with pytest.raises(CompilationError) as caught:
        build_host_library(_SOURCE, talker)
    message = str(caught.value)
    assert "\n1\n2\n3\n" in message
    assert "further characters are left out" in message
    assert len(message) < 10_000


def test_hanging_compiler_is_stopped(tmp_path, monkeypatch):
    child = tmp_path / "child"
    hanging = _compiler_that(tmp_path / "hanging", f"sleep 300 & echo $! > {child}; wait\n")
    monkeypatch.setenv("GRADSOLVE_COMPILE_TIMEOUT", "0.5")
    with pytest.raises(CompilationError, match="did not finish within 0.5 seconds"):
        build_host_library(_SOURCE, hanging)
    # Its children end with it. Without a parent they may stay zombies.
    status = Path(f"/proc/{child.read_text().strip()}/stat")
    for _ in range(100):
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("a process of the compiler is still running")


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf"])
def test_wrong_timeout(monkeypatch, value):
    monkeypatch.setenv("GRADSOLVE_COMPILE_TIMEOUT", value)
    with pytest.raises(ValueError, match=f"positive number of seconds, got '{value}'"):
        _env.compile_timeout()


def test_killed_compiler(tmp_path):
    killed = _compiler_that(tmp_path / "killed", "kill -9 $$\n")
    with pytest.raises(CompilationError, match=r"was ended by signal 9 \(Killed\)"):
        build_host_library(_SOURCE, killed)


def test_compiler_that_writes_nothing(tmp_path):
    idle = _compiler_that(tmp_path / "idle", "exit 0\n")
    with pytest.raises(CompilationError, match="wrote no library"):
        build_host_library(_SOURCE, idle)


def test_compiler_that_disappears(tmp_path):
    gone = _compiler_that(tmp_path / "gone", "exit 0\n")
    gone.path.unlink()
    with pytest.raises(CompilationError, match="could not be started: No such file"):
        build_host_library(_SOURCE, gone)


@pytest.mark.parametrize("definition", ["", "-O0", "A B", "1", "=1"])
def test_wrong_definition(compiler, definition):
    with pytest.raises(ValueError, match="NAME or NAME=value"):
        build_host_library(_SOURCE, compiler, (definition,))


# The key

_KEY = BuildKey("source", "headers", "compiler", ("-a", "-b"), "arch")


def test_every_field_changes_the_digest():
    digests = {_KEY.digest()}
    for field in dataclasses.fields(BuildKey):
        value = getattr(_KEY, field.name)
        other = {str: "other", int: -1, tuple: ("-a",)}[type(value)]
        digests.add(dataclasses.replace(_KEY, **{field.name: other}).digest())
    assert len(digests) == 1 + len(dataclasses.fields(BuildKey))


def test_no_character_moves_between_fields():
    texts = ("source", "headers", "compiler", "arch")
    for left, right in itertools.permutations(texts, 2):
        moved = getattr(_KEY, left) + getattr(_KEY, right)[0], getattr(_KEY, right)[1:]
        changed = dataclasses.replace(_KEY, **dict(zip((left, right), moved, strict=True)))
        assert changed.digest() != _KEY.digest()
    flags = [("-a", "-b"), ("-a-b",), ("-a", "", "-b"), ("-a", "-", "b"), ("-b", "-a"), ("2:-a",)]
    assert len({dataclasses.replace(_KEY, flags=flag).digest() for flag in flags}) == len(flags)


@pytest.mark.parametrize("name", ["source", "headers", "compiler", "arch"])
def test_key_without_an_identity_is_refused(name):
    with pytest.raises(ValueError, match=f"needs its `{name}`"):
        dataclasses.replace(_KEY, **{name: ""})


def test_whatever_changes_the_binary_is_another_entry(compiler, monkeypatch):
    libraries = [
        build_host_library(_SOURCE, compiler),
        build_host_library(f"{_SOURCE}\n", compiler),
        build_host_library(_SOURCE, compiler, ("VALUE=3",)),
        build_host_library(_SOURCE, dataclasses.replace(compiler, identity="another")),
        build_host_library(
            _SOURCE, dataclasses.replace(compiler, flags=(*compiler.flags, "-DVALUE=9"))
        ),
    ]
    monkeypatch.setattr(headers, "headers", lambda: {"gs/other.h": "#define OTHER 4\n"})
    libraries.append(build_host_library(_SOURCE, compiler))
    source = f'#include "gs/other.h"\n#define VALUE OTHER\n{_SOURCE}'
    libraries.append(build_host_library(source, compiler))
    monkeypatch.setattr(headers, "headers", lambda: {"gs/other.h": "#define OTHER 5\n"})
    libraries.append(build_host_library(source, compiler))
    assert [_value(library) for library in libraries] == [7, 7, 3, 7, 9, 7, 4, 5]
    assert len({library.parent for library in libraries}) == len(libraries)


def test_headers_are_the_packages_files():
    folder = _ROOT / "gradsolve" / "csrc"
    files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.h")}
    assert list(headers.headers()) == sorted(files)
    assert dict(headers.headers()) == files
