from .cache import BUILD_COUNTS as BUILD_COUNTS
from .errors import CacheDirectoryError as CacheDirectoryError
from .errors import CompilationError as CompilationError
from .errors import CompilerNotFoundError as CompilerNotFoundError
from .host import HostCompiler as HostCompiler
from .host import build_host_library as build_host_library
from .host import host_compiler as host_compiler
from .key import BuildKey as BuildKey
