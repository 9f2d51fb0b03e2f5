"""The compiled part of a launch: handlers that XLA calls, from `csrc/launch.cpp`."""

import importlib.resources
from pathlib import Path

import jax

from .host import HostCompiler, build_host_library

_PACKAGE = __name__.partition(".")[0]
_INTERFACE = "xla/ffi/api/c_api.h"


def build_launcher(compiler: HostCompiler) -> Path:
    """Compiles the handlers against the interface of the installed jaxlib, or finds them compiled.

    **Raises:**

    `CompilationError` with the compiler's own message.
    """
    # As one text: what is compiled is then what the key of the build says.
    interface = Path(jax.ffi.include_dir(), _INTERFACE).read_text(encoding="utf-8")
    own = importlib.resources.files(_PACKAGE).joinpath("csrc", "launch.cpp")
    return build_host_library(f"{interface}\n{own.read_text(encoding='utf-8')}", compiler)
