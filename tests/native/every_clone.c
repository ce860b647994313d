/*
 * Prints a line of checksums for each clone of the kernels: of what it computes from bits that are drawn the same way on
 * every machine, so that lines of two machines can be compared. test_aarch64.py builds it. The exit code is the number
 * of checksums in which two clones of CRC-32C differ.
 */
#include "../../native/tiermesh.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { COUNT = 200003, LONGEST = 20000 };

static uint64_t state;

/* Return 32 random bits (xorshift of Marsaglia, 2003). */
static uint32_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 16;
}

/* Draw values whose bits are masked and set: of every kind, or of exponents close enough to be added. */
static void fill(float *values, uint32_t mask, uint32_t set)
{
    for (size_t i = 0; i < COUNT; i++) {
        uint32_t bits = (draw() & mask) | set;
        memcpy(values + i, &bits, sizeof bits);
    }
}

/* Print the checksum of values, in which all NaNs are the same. */
static void print_values(const char *name, const float *values)
{
    static float same[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        same[i] = isnan(values[i]) ? NAN : values[i];
    printf(" %s %08x", name, tiermesh_crc32c(0, same, sizeof same));
}

static int compare_checksums(void)
{
    static uint8_t bytes[LONGEST + 16];
    const struct tiermesh_checksum *first = tiermesh_find_checksum(0), *other;
    int differing = 0;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = draw();
    for (size_t index = 1; (other = tiermesh_find_checksum(index)); index++)
        for (size_t size = 0; size < LONGEST; size += size < 600 ? 1 : 777)
            for (size_t start = 0; start < 9; start += 4)
                differing += first->update(~0u, bytes + start, size) != other->update(~0u, bytes + start, size);
    printf("CRC-32C %08x, differing %d\n", tiermesh_crc32c(0, bytes, sizeof bytes), differing);
    return differing;
}

static void print_kernels(const struct tiermesh_kernels *kernels)
{
    static float left[COUNT], right[COUNT], out[COUNT], weights[COUNT], mean[COUNT], square[COUNT], largest[COUNT];
    static uint8_t place[2 * COUNT + 1];
    bits16 *stored = (bits16 *)(place + 1);
    static const int64_t starts[] = {0, 5000, 150001}, stops[] = {333, 70001, 200003};
    double sums[4];
    state = 4242;
    fill(left, ~0u, 0);
    fill(right, ~0u, 0);
    kernels->add(left, right, out, COUNT);
    print_values("add", out);
    kernels->narrow_bf16(left, stored, COUNT);
    kernels->widen_bf16(stored, out, COUNT);
    print_values("bf16", out);
    kernels->add_bf16(out, stored, COUNT);
    print_values("add_bf16", out);
    fill(left, 0x9fffffff, 0x20000000); /* from the subnormals of binary16 to its infinities */
    kernels->narrow_fp16(left, stored, COUNT);
    kernels->widen_fp16(stored, out, COUNT);
    print_values("fp16", out);
    kernels->add_fp16(out, stored, COUNT);
    print_values("add_fp16", out);
    fill(weights, 0x8fffffff, 0x30000000);
    fill(right, 0x8fffffff, 0x30000000);
    kernels->scale_with_norm(weights, 0.333f, out, sums, COUNT);
    print_values("scale", out);
    printf(" norm %a %a %a %a", sums[0], sums[1], sums[2], sums[3]);
    fill(mean, 0x8fffffff, 0x30000000);
    fill(square, 0x0fffffff, 0x30000000);
    fill(largest, 0x0fffffff, 0x30000000);
    kernels->adamw(weights, right, mean, square, largest, 17, 190001, starts, stops, 3,
                   0.7f, 0.1f, 0.999f, 0.001f, 0.01f, 1e-8f, 0.999f);
    print_values("adamw", weights);
    print_values("mean", mean);
    print_values("largest", largest);
    kernels->sgd(weights, right, mean, 17, 190001, starts, stops, 3, 0.7f, 0.1f, 0.9f, 0.5f, 0.01f, true);
    print_values("sgd", weights);
    printf("\n");
}

int main(void)
{
    const struct tiermesh_kernels *kernels;
    state = 88172645463325252u;
    int differing = compare_checksums();
    for (size_t index = 0; (kernels = tiermesh_find_kernels(index)); index++)
        print_kernels(kernels);
    return differing;
}
