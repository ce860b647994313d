"""The compiled path of crc32c.py, for CPUs that multiply polynomials in wide registers. Import through `compiler.load`.

Bytes are a polynomial over bits, and their CRC is its remainder by a fixed one, P. So whatever lies n bits before the
end may be replaced by its product with x^n mod P, there: registers full of bytes are folded onto those that follow,
until one is left, which has the CRC of all. (Gopal et al., "Fast CRC Computation for Generic Polynomials Using
PCLMULQDQ Instruction", Intel 2009.)
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
_REGISTERS = 4  # so many products are under way at once


def _lanes() -> int:
    """How many pairs of 64 bits are multiplied at once; 0: too few to be worth it."""
    if config.CPU_NAME or config.CPU_FEATURES is not None or not config.ENABLE_AVX:
        return 0  # numba is to compile for another CPU than this
    try:
        features: dict[str, bool] = binding.get_host_cpu_features()
    except RuntimeError:
        return 0
    if not features.get("vpclmulqdq") or not features.get("avx2"):
        return 0
    return 4 if features.get("avx512f") else 2


LANES = _lanes()
"""0: there is no `fold` for this CPU."""
REMAINDER_BYTES = 16 * LANES
"""What `fold` leaves."""
BLOCK_BYTES = REMAINDER_BYTES * _REGISTERS
"""What it takes at a time."""


def _power(exponent: int) -> int:
    """x^exponent mod P, its bits in the order of CRC-32C's bytes, as a factor of 64 bits."""
    bits = 1
    for _ in range(exponent):
        bits <<= 1
        if bits >> 32:
            bits ^= 1 << 32 | _POLYNOMIAL
    return int(f"{bits:032b}"[::-1], 2) << 1


def _fold(typing_context: Any, content: Any, remainder: Any) -> Any:
    """The code of `fold`: numba has no types for these registers."""
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
            """A register, folded onto another one, which comes so many registers after it."""
            bits = 128 * LANES * registers
            factors = ir.Constant(register, [_power(bits + 32), _power(bits - 32)] * LANES)
            low, high = (
                builder.call(product, [folded, factors, ir.IntType(8)(each)]) for each in (0x00, 0x11)
            )
            return builder.xor(builder.xor(low, high), other)

        held = [cgutils.alloca_once(builder, register) for _ in range(_REGISTERS)]
        inverted = ir.Constant(register, [0xFFFFFFFF] + [0] * (2 * LANES - 1))  # as a CRC-32C begins
        for index, place in enumerate(held):
            first = load(number(index))
            builder.store(builder.xor(first, inverted) if index == 0 else first, place)
        size = cgutils.unpack_tuple(builder, arrays[0].shape)[0]
        blocks = builder.udiv(size, number(BLOCK_BYTES))
        with cgutils.for_range(builder, blocks, start=number(1)) as loop:
            start = builder.mul(loop.index, number(_REGISTERS))
            for index, place in enumerate(held):
                following = load(builder.add(start, number(index)))
                builder.store(onto(builder.load(place), _REGISTERS, following), place)
        left = builder.load(held[0])
        for place in held[1:]:
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
        """Write bytes to `remainder` that have the CRC of `content`, whole blocks, one at least; from a CRC of 0 on."""
        _folded(content, remainder)
