"""The hottest bytes, in C: checksums and the kernels on flat arrays. The lowest room, which imports nothing else.

Read in this order:

    tiermesh.h         what the library offers
    kernels.c          the kernels, compiled once for each set of instructions; their code is in kernels_body.h
    crc32c.c           CRC-32C; crc32c_fold.h has its fastest way
    build.py           compiles all `*.c` of this folder to libtiermesh.so (sources.py), for `setup.py` and for tests
    library.py         loads it, and binds its functions by ctypes
    crc32c.py          checksums for Python

To add a C file, put it here and declare what others call in a header: every `*.c` is compiled. Functions that Python
calls are marked EXPORT, and bound in library.py or in a module of their own. C code knows nothing of Python objects.
Python checks types, sizes and contiguity, and gives addresses. Calls release the GIL. `make install` compiles again
after any change; a library of other sources is not loaded.
"""

from __future__ import annotations


class Unusable(ImportError):
    """The C library can't be built or loaded; the text says why and how to fix it."""
