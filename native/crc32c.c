/*
 * CRC-32C (RFC 3720): by a table on any CPU, by the CPU's own instruction, or by folding with carry-less products.
 *
 * Polynomials modulo P are 32-bit numbers whose highest bit is the coefficient of x^0, the order in which CRC-32C takes
 * bits. All factors and tables are computed from P when the library is loaded, which takes a tenth of a millisecond.
 */
#include "tiermesh.h"

#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#define INSTRUCTION "sse4.2"
#define TARGET __attribute__((target("sse4.2")))
#define STEP_BYTE(state, byte) _mm_crc32_u8(state, byte)
#define STEP_WORD(state, word) (uint32_t)_mm_crc32_u64(state, word)
#else
#include <arm_acle.h>
#include <sys/auxv.h>
#define INSTRUCTION "crc"
#define TARGET __attribute__((target("+crc")))
#define STEP_BYTE(state, byte) __crc32cb(state, byte)
#define STEP_WORD(state, word) __crc32cd(state, word)
#endif

#define POLYNOMIAL 0x82f63b78u /* P without x^32 */

/* Bytes that each of the three interleaved lanes takes: enough that joining them costs little. */
enum { LANE_BYTES = 1024 };

/* The state after byte `b` and `k` zero bytes, from the state 0: [k][b]. */
static uint32_t byte_table[8][256];
/* The state after one lane and after two lanes of zeros, for each value of byte k of the state before: [k][value]. */
static uint32_t one_lane[4][256], two_lanes[4][256];

/* Return the product with x. */
static uint32_t times_x(uint32_t factor)
{
    return factor >> 1 ^ (factor & 1 ? POLYNOMIAL : 0);
}

static uint32_t multiply(uint32_t left, uint32_t right)
{
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (left & bit)
            product ^= right;
        right = times_x(right);
    }
    return product;
}

/* Return x^exponent. */
static uint32_t power(unsigned exponent)
{
    uint32_t value = 1u << 31;
    while (exponent--)
        value = times_x(value);
    return value;
}

/* Fill the table of what `bytes` zero bytes make of a state. */
static void prepare_zeros(uint32_t table[4][256], unsigned bytes)
{
    uint32_t factor = power(8 * bytes);
    for (unsigned k = 0; k < 4; k++)
        for (uint32_t value = 0; value < 256; value++)
            table[k][value] = multiply(value << 8 * k, factor);
}

static uint32_t append_zeros(uint32_t table[4][256], uint32_t state)
{
    return table[0][state & 255] ^ table[1][state >> 8 & 255] ^ table[2][state >> 16 & 255] ^ table[3][state >> 24];
}

static uint64_t load_word(const uint8_t *from)
{
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

static uint32_t update_by_table(uint32_t state, const void *content, size_t bytes)
{
    const uint8_t *at = content;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word = load_word(at) ^ state;
        state = 0;
        for (unsigned k = 0; k < 8; k++)
            state ^= byte_table[7 - k][word >> 8 * k & 255];
    }
    while (bytes--)
        state = state >> 8 ^ byte_table[0][(state ^ *at++) & 255];
    return state;
}

/* The instruction takes three cycles, but the CPU begins one in each cycle: three lanes side by side fill the wait. */
TARGET static uint32_t update_by_instruction(uint32_t state, const void *content, size_t bytes)
{
    const uint8_t *at = content;
    for (; bytes >= 3 * LANE_BYTES; at += 3 * LANE_BYTES, bytes -= 3 * LANE_BYTES) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < LANE_BYTES; i += 8) {
            state = STEP_WORD(state, load_word(at + i));
            second = STEP_WORD(second, load_word(at + LANE_BYTES + i));
            third = STEP_WORD(third, load_word(at + 2 * LANE_BYTES + i));
        }
        state = append_zeros(two_lanes, state) ^ append_zeros(one_lane, second) ^ third;
    }
    for (; bytes >= 8; at += 8, bytes -= 8)
        state = STEP_WORD(state, load_word(at));
    while (bytes--)
        state = STEP_BYTE(state, *at++);
    return state;
}

#undef TARGET

#ifdef __x86_64__

/* Compute the factors that fold a register of 128-bit lanes onto one that comes `registers` registers later. */
static void prepare_factors(uint64_t *factors, unsigned lanes, unsigned registers)
{
    unsigned bits = 128 * lanes * registers;
    for (unsigned lane = 0; lane < lanes; lane++) {
        /* Reversed 64-bit factors have 63 bits in their product, one less than the register's order of bits expects. */
        factors[2 * lane] = (uint64_t)power(bits + 32) << 1;
        factors[2 * lane + 1] = (uint64_t)power(bits - 32) << 1;
    }
}

#define NAME(function) function##_256
#define TARGET __attribute__((target("avx2,vpclmulqdq,sse4.2")))
#define VECTOR __m256i
#define MULTIPLY _mm256_clmulepi64_epi128
#include "crc32c_fold.h"
#undef NAME
#undef TARGET
#undef VECTOR
#undef MULTIPLY

#define NAME(function) function##_512
#define TARGET __attribute__((target("avx512f,vpclmulqdq,sse4.2")))
#define VECTOR __m512i
#define MULTIPLY _mm512_clmulepi64_epi128
#include "crc32c_fold.h"
#undef NAME
#undef TARGET
#undef VECTOR
#undef MULTIPLY

#endif

__attribute__((constructor)) static void prepare(void)
{
    for (unsigned k = 0; k < 8; k++)
        for (uint32_t byte = 0; byte < 256; byte++)
            byte_table[k][byte] = k ? byte_table[k - 1][byte] >> 8 ^ byte_table[0][byte_table[k - 1][byte] & 255]
                                    : multiply(byte, power(8));
    prepare_zeros(one_lane, LANE_BYTES);
    prepare_zeros(two_lanes, 2 * LANE_BYTES);
#ifdef __x86_64__
    prepare_256();
    prepare_512();
#endif
}

static bool has_instruction(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("sse4.2");
#else
    return getauxval(AT_HWCAP) & HWCAP_CRC32;
#endif
}

const struct tiermesh_checksum *tiermesh_find_checksum(size_t index)
{
    static const struct tiermesh_checksum
        table = {"table", update_by_table},
        instruction = {INSTRUCTION, update_by_instruction};
    const struct tiermesh_checksum *here[4];
    size_t count = 0;
#ifdef __x86_64__
    static const struct tiermesh_checksum
        folded_512 = {"vpclmulqdq-512", update_512},
        folded_256 = {"vpclmulqdq-256", update_256};
    if (__builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f") && has_instruction())
        here[count++] = &folded_512;
    if (__builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx2") && has_instruction())
        here[count++] = &folded_256;
#endif
    if (has_instruction())
        here[count++] = &instruction;
    here[count++] = &table;
    return index < count ? here[index] : NULL;
}

uint32_t tiermesh_crc32c(uint32_t crc, const void *content, size_t bytes)
{
    return ~tiermesh_find_checksum(0)->update(~crc, content, bytes);
}
