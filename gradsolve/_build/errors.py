"""What can go wrong when kernels are compiled."""

from collections.abc import Sequence
from pathlib import Path

# A template error can fill megabytes; its cause is at the beginning.
_SHOWN_OUTPUT = 8000


class CompilerNotFoundError(RuntimeError):
    """There is no compiler; the message names the remedy."""


class CacheDirectoryError(RuntimeError):
    """Compiled kernels cannot be kept safely in the directory; the message names the remedy."""


class CompilationError(RuntimeError):
    """A compiler refused a source; the message has its output, the command and the source."""


def compilation_error(
    problem: str, output: str, command: str, kept: Path | None
) -> CompilationError:
    """Puts the parts of the message together, the compiler's own output shortened."""
    lines = [problem]
    output = output.strip()
    if output:
        lines.append(_head(output))
    lines.append(f"The command was: {command}")
    if kept is not None:
        lines.append(f"The source was kept in {kept}")
    return CompilationError("\n".join(lines))


def _head(output: str) -> str:
    if len(output) <= _SHOWN_OUTPUT:
        return output
    left_out = len(output) - _SHOWN_OUTPUT
    return f"{output[:_SHOWN_OUTPUT]}\n[{left_out} further characters are left out]"


def joined(words: Sequence[str]) -> str:
    """Words as in "a", "a or b" and "a, b or c"."""
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
