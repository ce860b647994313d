/*
 * Kernels on flat arrays, in a clone for each set of instructions that makes them faster.
 *
 * A clone is kernels_body.h, compiled with an attribute that allows more instructions. `tiermesh_find_kernels` asks the
 * CPU which of them it has, when the library is loaded. The library as a whole is compiled for every CPU of its
 * architecture, so one file serves all hosts.
 */
#include "tiermesh.h"

#include <string.h>

/* Elements of a block of the global norm, `BLOCK_ELEMENTS` of services/tensors/kernels/arithmetic.py. */
enum { BLOCK_ELEMENTS = 64 * 1024 };

/* What precedes a loop whose iterations don't depend on each other, so that an `out` may be an operand. */
#ifdef __clang__
#define ELEMENTWISE _Pragma("clang loop vectorize(assume_safety)")
#else
#define ELEMENTWISE _Pragma("GCC ivdep")
#endif

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Return `left` if the condition holds, else `right`. With branches instead, GCC takes one element at a time. */
static inline uint32_t choose(bool condition, uint32_t left, uint32_t right)
{
    uint32_t mask = -(uint32_t)condition;
    return (left & mask) | (right & ~mask);
}

static inline double squared(float value)
{
    return (double)value * (double)value;
}

static inline float widened_bf16(uint16_t stored)
{
    return float_of((uint32_t)stored << 16);
}

static inline float widened_fp16(uint16_t stored)
{
    uint32_t sign = ((uint32_t)stored & 0x8000) << 16;
    int32_t size = (stored & 0x7fff) << 13;
    uint32_t normal = (uint32_t)size + (112u << 23);
    /* With exponent 0 the bits count subnormals: set them behind the leading one of 2**-14, then subtract 2**-14. */
    uint32_t subnormal = bits_of(float_of((uint32_t)size + (113u << 23)) - float_of(113u << 23));
    uint32_t bits = size >= 1 << 23 ? normal : subnormal;
    bits = size >= 31 << 23 ? (uint32_t)size | 0x7f800000 : bits;
    bits = size > 31 << 23 ? bits | 0x00400000 : bits; /* a quiet NaN */
    return float_of(bits | sign);
}

/*
 * Return the end of the longest piece from `first` that decays throughout or not at all, and whether it decays.
 *
 * `starts` and `stops` are those of the runs that decay, [runs], ascending. `stop` bounds the end of the piece.
 */
static size_t end_of_piece(const int64_t *starts, const int64_t *stops, size_t runs, size_t first, size_t stop,
                           bool *decays)
{
    size_t low = 0, high = runs; /* the first run that ends after `first` is in [low, high] */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((size_t)stops[middle] <= first)
            low = middle + 1;
        else
            high = middle;
    }
    *decays = low < runs && (size_t)starts[low] <= first;
    if (low == runs)
        return stop;
    size_t end = (size_t)(*decays ? stops[low] : starts[low]);
    return end < stop ? end : stop;
}

#define CLONE "baseline"
#define TARGET
#define NAME(kernel) kernel##_baseline
#include "kernels_body.h"
#undef CLONE
#undef TARGET
#undef NAME

#ifdef __x86_64__

#define CLONE "avx2"
#define TARGET __attribute__((target("avx2")))
#define NAME(kernel) kernel##_avx2
#include "kernels_body.h"
#undef CLONE
#undef TARGET
#undef NAME

#define CLONE "avx512"
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define NAME(kernel) kernel##_avx512
#include "kernels_body.h"
#undef CLONE
#undef TARGET
#undef NAME

#endif

const struct tiermesh_kernels *tiermesh_find_kernels(size_t index)
{
    const struct tiermesh_kernels *here[3];
    size_t count = 0;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl"))
        here[count++] = &kernels_avx512;
    if (__builtin_cpu_supports("avx2"))
        here[count++] = &kernels_avx2;
#endif
    here[count++] = &kernels_baseline;
    return index < count ? here[index] : NULL;
}
