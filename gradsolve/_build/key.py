"""What a compiled kernel is identified by."""

import dataclasses
import hashlib

# To be raised when this package changes what it does with the same inputs in a way that no other
# field of the key shows.
_SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class BuildKey:
    """Everything that can change the binary, by value.

    Left out, because they cannot change it:

    - the versions of Python, JAX and jaxlib: a binary has a plain C interface and includes none of
      their headers;
    - names and times of files: sources and headers are compiled under fixed names;
    - the path of the compiler: `compiler` says what it is, wherever it lies. For the host that
      includes the resolved target, the include path and the versions of the C and C++ libraries;
    - the GPU's driver: binaries for one architecture run under every driver that knows it.

    **Arguments:**

    - `source`: the text that is compiled.
    - `headers`: digest of the package's own headers.
    - `compiler`: which compiler, in which version, for which target.
    - `flags`: its options, macro definitions among them, in their order.
    - `arch`: the processor the binary is for.
    """

    source: str
    headers: str
    compiler: str
    flags: tuple[str, ...]
    arch: str
    schema: int = _SCHEMA

    def __post_init__(self) -> None:
        for name in ("source", "headers", "compiler", "arch"):
            # An unknown compiler must not share entries with another unknown compiler.
            if not getattr(self, name):
                raise ValueError(f"A build key needs its `{name}`, which is empty.")

    def digest(self) -> str:
        """sha256 over the fields, as 64 hexadecimal digits.

        Lengths precede contents, so no character can move from one field into the next.
        """
        return digest_of(
            str(self.schema),
            self.source,
            self.headers,
            self.compiler,
            self.arch,
            *self.flags,  # last, so that their number needs no framing of its own
        )


def digest_of(*parts: str) -> str:
    """sha256 over strings, each preceded by its length."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode()
        digest.update(b"%d:" % len(content))
        digest.update(content)
    return digest.hexdigest()
