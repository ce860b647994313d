/*
 * CRC-32C by folding. crc32c.c includes this file once for each width of vector registers, with these macros:
 *
 *     NAME(function)          name of a function in this clone
 *     TARGET                  attribute that allows its instructions
 *     VECTOR                  type of a vector register
 *     MULTIPLY(a, b, halves)  products of 64-bit halves of a and b without carry, in each 128-bit lane
 *
 * Bytes form a polynomial over bits, and their CRC is its remainder modulo the polynomial P. So a term n bits before
 * the end can be replaced by its product with x^n mod P: each register full of bytes is folded onto a later one, until
 * one register is left that has the CRC of all bytes. Four registers at a time keep the multiplier busy, and they read one
 * stream, which suits the prefetcher. Source: Gopal et al., "Fast CRC Computation for Generic Polynomials Using
 * PCLMULQDQ Instruction", Intel 2009.
 */

enum {
    NAME(LANES) = sizeof(VECTOR) / 16,
    NAME(BLOCK_BYTES) = 4 * sizeof(VECTOR),
};

/* Factors that fold a register onto the next one, and onto the fourth one after it; `prepare` computes them. */
static uint64_t NAME(next)[2 * NAME(LANES)], NAME(fourth)[2 * NAME(LANES)];

static void NAME(prepare)(void)
{
    prepare_factors(NAME(next), NAME(LANES), 1);
    prepare_factors(NAME(fourth), NAME(LANES), 4);
}

TARGET static inline VECTOR NAME(load)(const void *from)
{
    VECTOR loaded;
    memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

/* Fold a register onto another one. */
TARGET static inline VECTOR NAME(fold)(VECTOR folded, VECTOR factors, VECTOR onto)
{
    return MULTIPLY(folded, factors, 0x00) ^ MULTIPLY(folded, factors, 0x11) ^ onto;
}

TARGET static uint32_t NAME(update)(uint32_t state, const void *content, size_t bytes)
{
    const uint8_t *at = content;
    if (bytes < 2 * NAME(BLOCK_BYTES))
        return update_by_instruction(state, content, bytes);
    VECTOR registers[4];
    for (size_t i = 0; i < 4; i++)
        registers[i] = NAME(load)(at + i * sizeof(VECTOR));
    /* The state before some bytes acts as if it were added to the first of them. */
    uint64_t before[2 * NAME(LANES)] = {state};
    registers[0] ^= NAME(load)(before);
    VECTOR factors = NAME(load)(NAME(fourth));
    for (at += NAME(BLOCK_BYTES), bytes -= NAME(BLOCK_BYTES); bytes >= NAME(BLOCK_BYTES);
         at += NAME(BLOCK_BYTES), bytes -= NAME(BLOCK_BYTES))
        for (size_t i = 0; i < 4; i++)
            registers[i] = NAME(fold)(registers[i], factors, NAME(load)(at + i * sizeof(VECTOR)));
    VECTOR left = registers[0];
    for (size_t i = 1; i < 4; i++)
        left = NAME(fold)(left, NAME(load)(NAME(next)), registers[i]);
    uint8_t remainder[sizeof(VECTOR)];
    memcpy(remainder, &left, sizeof remainder);
    return update_by_instruction(update_by_instruction(0, remainder, sizeof remainder), at, bytes);
}
