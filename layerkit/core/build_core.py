"""Builds the cffi module `layerkit.core._core`: every header in src/ is its interface, every C file its source.

Run by setup.py (`cffi_modules`). The headers hold declarations that cffi's parser understands: no includes, no macros
but plain integer #defines, no guards, fixed-width types only. What cffi must not see lies in src/private/.
"""

from pathlib import Path

import cffi

SOURCE = Path(__file__).parent / "src"
HEADERS = sorted(SOURCE.glob("*.h"))
PRIVATE_HEADERS = sorted(SOURCE.glob("private/*.h"))
PRELUDE = "#include <stddef.h>\n#include <stdint.h>\n"

ffibuilder = cffi.FFI()
ffibuilder.cdef("\n".join(header.read_text() for header in HEADERS))
ffibuilder.set_source(
    "layerkit.core._core",
    PRELUDE + "".join(f'#include "{header.name}"\n' for header in HEADERS),
    sources=[f"layerkit/core/src/{path.name}" for path in sorted(SOURCE.glob("*.c"))],
    include_dirs=["layerkit/core/src"],
    depends=[f"layerkit/core/src/{path.relative_to(SOURCE)}" for path in [*HEADERS, *PRIVATE_HEADERS]],
    extra_compile_args=["-O2", "-std=gnu11", "-Wall", "-Wextra", "-fno-strict-aliasing"],
)
