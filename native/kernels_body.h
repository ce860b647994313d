/*
 * The kernels of one clone. kernels.c includes this file once for each set of instructions, with these macros:
 *
 *     NAME(kernel)  name of a kernel in this clone
 *     CLONE         name of the clone, as text
 *     TARGET        attribute that allows its instructions
 *
 * Every operation is a single IEEE 754 operation in the order written: the compiler takes several elements at once, but
 * neither fuses nor reorders (FLAGS in build.py). So all clones give the same bits, which are those of
 * tests/support/numpy_kernels.py; a NaN stays a NaN, of any bits. Arrays have `count` elements. An `out` may be an
 * operand, but arrays must not overlap in part.
 */

/* Write `left + right` to `out`. */
TARGET static void NAME(add)(const float32 *left, const float32 *right, float32 *out, size_t count)
{
    ELEMENTWISE
    for (size_t i = 0; i < count; i++)
        out[i] = left[i] + right[i];
}

/*
 * Return the sum of squares of a block, of which `count` elements are there and the others are zero.
 *
 * The sum is float64, and its order is fixed: the upper half is added to the lower half until one element is left.
 * Eight squares that meet within three halvings are taken at once.
 */
TARGET static double NAME(sum_squares)(const float32 *values, size_t count)
{
    double sums[BLOCK_ELEMENTS / 8];
    if (count == BLOCK_ELEMENTS) {
        const float32 *part[8];
        for (size_t k = 0; k < 8; k++)
            part[k] = values + k * (BLOCK_ELEMENTS / 8);
        ELEMENTWISE
        for (size_t i = 0; i < BLOCK_ELEMENTS / 8; i++)
            sums[i] = ((squared(part[0][i]) + squared(part[4][i])) + (squared(part[2][i]) + squared(part[6][i])))
                    + ((squared(part[1][i]) + squared(part[5][i])) + (squared(part[3][i]) + squared(part[7][i])));
    } else {
        for (size_t i = 0; i < BLOCK_ELEMENTS / 8; i++) {
            double squares[8];
            for (size_t k = 0; k < 8; k++) {
                size_t at = i + k * (BLOCK_ELEMENTS / 8);
                squares[k] = at < count ? squared(values[at]) : 0.0;
            }
            sums[i] = ((squares[0] + squares[4]) + (squares[2] + squares[6]))
                    + ((squares[1] + squares[5]) + (squares[3] + squares[7]));
        }
    }
    for (size_t left = BLOCK_ELEMENTS / 64; left >= 2; left /= 8) {
        ELEMENTWISE
        for (size_t i = 0; i < left; i++)
            sums[i] = ((sums[i] + sums[i + 4 * left]) + (sums[i + 2 * left] + sums[i + 6 * left]))
                    + ((sums[i + left] + sums[i + 5 * left]) + (sums[i + 3 * left] + sums[i + 7 * left]));
    }
    return sums[0] + sums[1];
}

/*
 * Write `values * factor` to `out`, and the sums of squares of its blocks to `sums`, [ceil(count / 65536)].
 *
 * A block is summed while it is in the cache. A sum is finite if and only if all its elements are, since squares of
 * float32 can't overflow float64.
 */
TARGET static void NAME(scale_with_norm)(const float32 *values, float factor, float32 *out, double *sums, size_t count)
{
    for (size_t start = 0; start < count; start += BLOCK_ELEMENTS) {
        size_t size = count - start < BLOCK_ELEMENTS ? count - start : BLOCK_ELEMENTS;
        const float32 *from = values + start;
        float32 *to = out + start;
        ELEMENTWISE
        for (size_t i = 0; i < size; i++)
            to[i] = from[i] * factor;
        *sums++ = NAME(sum_squares)(to, size);
    }
}

/* Round to bfloat16, to nearest, ties to even. Every NaN becomes 0x7fc0. */
TARGET static void NAME(narrow_bf16)(const float32 *values, bits16 *out, size_t count)
{
    ELEMENTWISE
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(values[i]);
        int32_t size = bits & 0x7fffffff;
        /* The addend is just below half of the lowest kept bit, plus that bit itself. */
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        out[i] = size > 0x7f800000 ? 0x7fc0 : rounded;
    }
}

/* Round to IEEE 754 binary16, to nearest, ties to even. Every NaN becomes 0x7e00. */
TARGET static void NAME(narrow_fp16)(const float32 *values, bits16 *out, size_t count)
{
    ELEMENTWISE
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(values[i]);
        uint32_t sign = bits >> 16 & 0x8000;
        int32_t size = bits & 0x7fffffff;
        /* Exponents are rebased from 127 to 15. 0xfff is just below half of the lowest kept bit. */
        uint32_t normal = ((uint32_t)size - (112u << 23) + 0xfff + ((uint32_t)size >> 13 & 1)) >> 13;
        /* The lowest bit of 0.5 equals the smallest subnormal, so the sum's lowest bits count subnormals. */
        uint32_t subnormal = bits_of(float_of((uint32_t)size) + 0.5f) - (126u << 23);
        uint32_t kept = choose(size >= 113 << 23, normal, subnormal);
        kept = choose(size >= 143 << 23, 0x7c00, kept); /* too large: infinite */
        out[i] = choose(size > 0x7f800000, 0x7e00, kept | sign);
    }
}

/* Widen bfloat16, exactly. */
TARGET static void NAME(widen_bf16)(const bits16 *stored, float32 *out, size_t count)
{
    ELEMENTWISE
    for (size_t i = 0; i < count; i++)
        out[i] = widened_bf16(stored[i]);
}

/* Widen binary16, exactly; NaNs become quiet. */
TARGET static void NAME(widen_fp16)(const bits16 *stored, float32 *out, size_t count)
{
    ELEMENTWISE
    for (size_t i = 0; i < count; i++)
        out[i] = widened_fp16(stored[i]);
}

/* Add bfloat16 elements to `into`. */
TARGET static void NAME(add_bf16)(float32 *into, const bits16 *stored, size_t count)
{
    ELEMENTWISE
    for (size_t i = 0; i < count; i++)
        into[i] += widened_bf16(stored[i]);
}

/* Add binary16 elements to `into`. */
TARGET static void NAME(add_fp16)(float32 *into, const bits16 *stored, size_t count)
{
    ELEMENTWISE
    for (size_t i = 0; i < count; i++)
        into[i] += widened_fp16(stored[i]);
}

/* Update a piece of the weights that decays by `kept`, see `adamw`. `amsgrad` is a constant where this is inlined. */
TARGET static inline __attribute__((always_inline)) void NAME(adamw_piece)(
    float32 *weights, const float32 *gradient, float32 *mean, float32 *square, float32 *largest, size_t count,
    float clip, float blend1, float keep2, float blend2, float rate, float floor, float kept, bool amsgrad)
{
    ELEMENTWISE
    for (size_t i = 0; i < count; i++) {
        float clipped = gradient[i] * clip;
        float moment = mean[i] + (clipped - mean[i]) * blend1;
        float second = square[i] * keep2 + (clipped * clipped) * blend2;
        mean[i] = moment;
        square[i] = second;
        if (amsgrad) {
            float top = largest[i];
            second = top >= second || top != top ? top : second; /* as numpy's maximum: a NaN counts as the largest */
            largest[i] = second;
        }
        weights[i] = weights[i] * kept - moment / (__builtin_sqrtf(second) + floor) * rate;
    }
}

/*
 * Update elements `start` to `stop` of the weights and of both moments by AdamW; plane/update_rules.py has the formula.
 *
 * Arrays are whole, and all but the gradient change in place. `largest` is NULL without AMSGrad. Runs of elements that
 * decay begin and end at `decay_starts` and `decay_stops`, [runs], ascending.
 */
TARGET static void NAME(adamw)(
    float32 *weights, const float32 *gradient, float32 *mean, float32 *square, float32 *largest,
    size_t start, size_t stop, const int64_t *decay_starts, const int64_t *decay_stops, size_t runs,
    float clip, float blend1, float keep2, float blend2, float rate, float floor, float shrink)
{
    while (start < stop) {
        bool decays;
        size_t end = end_of_piece(decay_starts, decay_stops, runs, start, stop, &decays), count = end - start;
        float kept = decays ? shrink : 1.0f;
        if (largest)
            NAME(adamw_piece)(weights + start, gradient + start, mean + start, square + start, largest + start, count,
                              clip, blend1, keep2, blend2, rate, floor, kept, true);
        else
            NAME(adamw_piece)(weights + start, gradient + start, mean + start, square + start, NULL, count,
                              clip, blend1, keep2, blend2, rate, floor, kept, false);
        start = end;
    }
}

/* Update a piece of the weights, see `sgd`. The flags are constants where this is inlined. */
TARGET static inline __attribute__((always_inline)) void NAME(sgd_piece)(
    float32 *weights, const float32 *gradient, float32 *velocity, size_t count,
    float clip, float decay, float momentum, float enter, float rate, bool decays, bool nesterov)
{
    ELEMENTWISE
    for (size_t i = 0; i < count; i++) {
        float change = gradient[i] * clip;
        if (decays)
            change += weights[i] * decay;
        if (velocity) {
            float moved = velocity[i] * momentum + change * enter;
            velocity[i] = moved;
            change = nesterov ? change + moved * momentum : moved;
        }
        weights[i] -= change * rate;
    }
}

/* Update as `adamw` does, by stochastic gradient descent. `velocity` is NULL without momentum. */
TARGET static void NAME(sgd)(
    float32 *weights, const float32 *gradient, float32 *velocity,
    size_t start, size_t stop, const int64_t *decay_starts, const int64_t *decay_stops, size_t runs,
    float clip, float decay, float momentum, float enter, float rate, bool nesterov)
{
    while (start < stop) {
        bool decays;
        size_t end = end_of_piece(decay_starts, decay_stops, runs, start, stop, &decays), count = end - start;
        float32 *w = weights + start, *v = velocity ? velocity + start : NULL;
        const float32 *g = gradient + start;
        if (!v && decays)
            NAME(sgd_piece)(w, g, NULL, count, clip, decay, momentum, enter, rate, true, false);
        else if (!v)
            NAME(sgd_piece)(w, g, NULL, count, clip, decay, momentum, enter, rate, false, false);
        else if (decays && nesterov)
            NAME(sgd_piece)(w, g, v, count, clip, decay, momentum, enter, rate, true, true);
        else if (decays)
            NAME(sgd_piece)(w, g, v, count, clip, decay, momentum, enter, rate, true, false);
        else
            NAME(sgd_piece)(w, g, v, count, clip, decay, momentum, enter, rate, false, nesterov);
        start = end;
    }
}

static const struct tiermesh_kernels NAME(kernels) = {
    .clone = CLONE,
    .add = NAME(add),
    .scale_with_norm = NAME(scale_with_norm),
    .narrow_bf16 = NAME(narrow_bf16),
    .narrow_fp16 = NAME(narrow_fp16),
    .widen_bf16 = NAME(widen_bf16),
    .widen_fp16 = NAME(widen_fp16),
    .add_bf16 = NAME(add_bf16),
    .add_fp16 = NAME(add_fp16),
    .adamw = NAME(adamw),
    .sgd = NAME(sgd),
};
