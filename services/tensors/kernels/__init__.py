"""Numeric kernels on flat arrays that give the same bits on every host.

Imports services' errors alone. Read `arithmetic` first: it has all functions. Each has a numpy path, there or in
`wire_types`, and a compiled one in `compiled_arithmetic`. `compiler` decides once per process which of them runs.
`crc32c` and `compiled_crc32c` are the same for checksums.
"""
