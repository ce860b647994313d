/* What the files of the library share: its platforms, what it exports, and how elements lie in memory. */
#ifndef TIERMESH_H
#define TIERMESH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(__linux__) || !(defined(__x86_64__) || defined(__aarch64__)) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Tiermesh runs on Linux on x86-64 and on little-endian aarch64 only"
#endif

/* Python sees these names only; all others are hidden (-fvisibility=hidden). */
#define EXPORT __attribute__((visibility("default")))

/* Elements of payloads. A payload begins anywhere in its message, so these types promise no alignment. */
typedef float float32 __attribute__((aligned(1)));
typedef uint16_t bits16 __attribute__((aligned(1)));

/*
 * Return the checksum of the sources that the library was built from, hexadecimal (build.py). library.py loads no
 * library of other sources than those beside it.
 */
EXPORT const char *tiermesh_sources(void);

/* Return the CRC-32C of bytes that follow bytes whose CRC-32C is `crc` (0 if there are none), by the best clone. */
EXPORT uint32_t tiermesh_crc32c(uint32_t crc, const void *content, size_t bytes);

/*
 * The kernels on flat arrays, compiled for one set of instructions. Python's view of this table is `_Table` in
 * library.py. All clones give the same bits; kernels_body.h describes each function.
 */
struct tiermesh_kernels {
    const char *clone;
    void (*add)(const float32 *left, const float32 *right, float32 *out, size_t count);
    void (*scale_with_norm)(const float32 *values, float factor, float32 *out, double *sums, size_t count);
    void (*narrow_bf16)(const float32 *values, bits16 *out, size_t count);
    void (*narrow_fp16)(const float32 *values, bits16 *out, size_t count);
    void (*widen_bf16)(const bits16 *stored, float32 *out, size_t count);
    void (*widen_fp16)(const bits16 *stored, float32 *out, size_t count);
    void (*add_bf16)(float32 *into, const bits16 *stored, size_t count);
    void (*add_fp16)(float32 *into, const bits16 *stored, size_t count);
    void (*adamw)(float32 *weights, const float32 *gradient, float32 *mean, float32 *square, float32 *largest,
                  size_t start, size_t stop, const int64_t *decay_starts, const int64_t *decay_stops, size_t runs,
                  float clip, float blend1, float keep2, float blend2, float rate, float floor, float shrink);
    void (*sgd)(float32 *weights, const float32 *gradient, float32 *velocity,
                size_t start, size_t stop, const int64_t *decay_starts, const int64_t *decay_stops, size_t runs,
                float clip, float decay, float momentum, float enter, float rate, bool nesterov);
};

/* Return the kernels of a clone that this CPU can run, the best one at index 0; NULL after the last. */
EXPORT const struct tiermesh_kernels *tiermesh_find_kernels(size_t index);

/*
 * A way to compute CRC-32C. `update` takes the internal state before some bytes and returns the state after them. The
 * first state is 0xffffffff, and a checksum is the inverted last state (RFC 3720).
 */
struct tiermesh_checksum {
    const char *clone;
    uint32_t (*update)(uint32_t state, const void *content, size_t bytes);
};

/* Return a checksum that this CPU can run, the best one at index 0; NULL after the last. */
EXPORT const struct tiermesh_checksum *tiermesh_find_checksum(size_t index);

#endif
