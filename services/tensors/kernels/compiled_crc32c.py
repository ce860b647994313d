"""Compiled path of crc32c.py, for CPUs that multiply polynomials in vector registers.

Import this module through `compiler.load` only. The bytes form a polynomial over bits, and their CRC is its remainder
modulo a fixed polynomial P. A term n bits before the end can therefore be replaced by its product with x^n mod P. So
each register full of bytes is folded onto a later one, until one register is left that has the CRC of all bytes.
Sources: RFC 3720 (P of CRC-32C); Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
Instruction", Intel 2009.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import config as numba_config
from numba import types
from numba.core import cgutils as numba_cgutils
from numba.extending import intrinsic

from services.tensors.kernels.compiler import jit

config: Any = numba_config
cgutils: Any = numba_cgutils

_POLYNOMIAL = 0x1EDC6F41  # P without its highest bit
_INSTRUCTIONS = {2: "llvm.x86.pclmulqdq.256", 4: "llvm.x86.pclmulqdq.512"}
_REGISTERS = 4  # number of independent products in the CPU's pipeline


def _count_lanes() -> int:
    """Return the number of 128-bit lanes of a vector register; 0 if `fold` is not available or not worth it."""
    if config.CPU_NAME or config.CPU_FEATURES is not None or not config.ENABLE_AVX:
        return 0  # numba is set to compile for another CPU
    try:
        features: dict[str, bool] = binding.get_host_cpu_features()
    except RuntimeError:
        return 0
    if not features.get("vpclmulqdq") or not features.get("avx2"):
        return 0
    return 4 if features.get("avx512f") else 2


LANES = _count_lanes()
"""Number of 128-bit lanes per register; 0 means that this CPU has no `fold`."""
REMAINDER_BYTES = 16 * LANES
"""Number of bytes that `fold` leaves."""
BLOCK_BYTES = REMAINDER_BYTES * _REGISTERS
"""Number of bytes that `fold` takes at a time."""


def _power(exponent: int) -> int:
    """Return x^exponent mod P as a 64-bit factor, with bits in the reflected order of CRC-32C."""
    bits = 1
    for _ in range(exponent):
        bits <<= 1
        if bits >> 32:
            bits ^= 1 << 32 | _POLYNOMIAL
    return int(f"{bits:032b}"[::-1], 2) << 1


def _fold(typing_context: Any, content: Any, remainder: Any) -> Any:
    """Generate the LLVM code of `fold`; numba has no types for vector registers."""
    number, register = ir.IntType(64), ir.VectorType(ir.IntType(64), 2 * LANES)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        ]
        source, target = (builder.bitcast(array.data, register.as_pointer()) for array in arrays)
        product_type = ir.FunctionType(register, [register, register, ir.IntType(8)])
        product = cgutils.get_or_insert_function(builder.module, product_type, _INSTRUCTIONS[LANES])

        def load(index: Any) -> Any:
            return builder.load(builder.gep(source, [index]), align=1)

        def onto(folded: Any, registers: int, other: Any) -> Any:
            """Fold a register onto another that comes `registers` registers after it."""
            bits = 128 * LANES * registers
            factors = ir.Constant(register, [_power(bits + 32), _power(bits - 32)] * LANES)
            low, high = (
                builder.call(product, [folded, factors, ir.IntType(8)(each)]) for each in (0x00, 0x11)
            )
            return builder.xor(builder.xor(low, high), other)

        accumulators = [cgutils.alloca_once(builder, register) for _ in range(_REGISTERS)]
        inverted = ir.Constant(register, [0xFFFFFFFF] + [0] * (2 * LANES - 1))  # the initial value of CRC-32C
        for index, place in enumerate(accumulators):
            first = load(number(index))
            builder.store(builder.xor(first, inverted) if index == 0 else first, place)
        size = cgutils.unpack_tuple(builder, arrays[0].shape)[0]
        blocks = builder.udiv(size, number(BLOCK_BYTES))
        with cgutils.for_range(builder, blocks, start=number(1)) as loop:
            start = builder.mul(loop.index, number(_REGISTERS))
            for index, place in enumerate(accumulators):
                following = load(builder.add(start, number(index)))
                builder.store(onto(builder.load(place), _REGISTERS, following), place)
        left = builder.load(accumulators[0])
        for place in accumulators[1:]:
            left = onto(left, 1, builder.load(place))
        builder.store(left, target, align=1)
        return context.get_dummy_value()

    return types.void(content, remainder), generate


if LANES:
    _folded: Any = intrinsic(_fold)
    _bytes_in = types.Array(types.uint8, 1, "C", readonly=True, aligned=False)
    _bytes_out = types.Array(types.uint8, 1, "C", readonly=False, aligned=False)

    @jit(types.void(_bytes_in, _bytes_out))
    def fold(content: Any, remainder: Any) -> None:
        """Write to `remainder` bytes whose CRC, from an initial value of 0, is the CRC-32C of `content`.

        Args:
            content: [n] uint8, n a positive multiple of `BLOCK_BYTES`.
            remainder: [REMAINDER_BYTES] uint8.
        """
        _folded(content, remainder)
