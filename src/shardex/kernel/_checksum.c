/* XXH3 with 64 bits, seed 0 and the default secret: the checksum of blocks, by the published description of the algorithm.
 *
 * Long inputs are consumed in stripes of 64 bytes by eight accumulators, one for each 8 bytes of a stripe. That loop is
 * written once and compiled for vectors of 32 and 16 bytes on x86-64, where the processor decides, and for plain integers
 * elsewhere. Vectors of 64 bytes gain nothing where this was measured. `_gather.c` and `_write_behind.c` include this file.
 */
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAVE_VECTORS 1
#endif
#if defined(__GNUC__)
#define HIDDEN __attribute__((visibility("hidden")))
#define PREFETCH(p) __builtin_prefetch(p)
#else
#define HIDDEN
#define PREFETCH(p) ((void)(p))
#endif

enum { STRIPE = 64, LANES = 8, SECRET = 192, ROUND = 1024, STRIPES = 16 }; /* a round is 16 stripes, each with a key that begins 8 bytes further on */

static const uint32_t PRIME32[3] = {0x9E3779B1U, 0x85EBCA77U, 0xC2B2AE3DU};
static const uint64_t PRIME64[5] = {0x9E3779B185EBCA87ULL, 0xC2B2AE3D27D4EB4FULL, 0x165667B19E3779F9ULL, 0x85EBCA77C2B2AE63ULL,
                                    0x27D4EB2F165667C5ULL};
static const uint64_t MIX_1 = 0x165667919E3779F9ULL, MIX_2 = 0x9FB21C651E98DF25ULL;

static const uint8_t secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb,
    0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc,
    0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

/* ---- numbers -------------------------------------------------------------------------------------------- */

static uint32_t swap32(uint32_t x) {
    return x << 24 | (x << 8 & 0xFF0000U) | (x >> 8 & 0xFF00U) | x >> 24;
}

static uint64_t swap64(uint64_t x) {
    return (uint64_t)swap32((uint32_t)x) << 32 | swap32((uint32_t)(x >> 32));
}

/* Numbers are little-endian. */
static uint32_t read32(const uint8_t *p) {
    uint32_t x;
    memcpy(&x, p, 4);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = swap32(x);
#endif
    return x;
}

static uint64_t read64(const uint8_t *p) {
    uint64_t x;
    memcpy(&x, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = swap64(x);
#endif
    return x;
}

static uint64_t rotate(uint64_t x, int bits) {
    return x << bits | x >> (64 - bits);
}

/* The low half of the product of 128 bits, xor its high half. */
static uint64_t fold(uint64_t a, uint64_t b) {
#if defined(__SIZEOF_INT128__)
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    uint64_t low = (a & 0xFFFFFFFFU) * (b & 0xFFFFFFFFU), high = (a >> 32) * (b >> 32);
    uint64_t first = (a >> 32) * (b & 0xFFFFFFFFU), second = (a & 0xFFFFFFFFU) * (b >> 32);
    uint64_t middle = (low >> 32) + (first & 0xFFFFFFFFU) + second; /* at most 64 bits */
    return (middle << 32 | (low & 0xFFFFFFFFU)) ^ (high + (first >> 32) + (middle >> 32));
#endif
}

static uint64_t avalanche(uint64_t x) {
    x = (x ^ x >> 37) * MIX_1;
    return x ^ x >> 32;
}

/* ---- inputs of up to 240 bytes --------------------------------------------------------------------------- */

static uint64_t finish_small(uint64_t x) {
    x = (x ^ x >> 33) * PRIME64[1];
    x = (x ^ x >> 29) * PRIME64[2];
    return x ^ x >> 32;
}

static uint64_t up_to_16(const uint8_t *p, uint64_t n) {
    if (n > 8) {
        uint64_t low = read64(p) ^ read64(secret + 24) ^ read64(secret + 32);
        uint64_t high = read64(p + n - 8) ^ read64(secret + 40) ^ read64(secret + 48);
        return avalanche(n + swap64(low) + high + fold(low, high));
    }
    if (n >= 4) {
        uint64_t x = (read32(p + n - 4) + ((uint64_t)read32(p) << 32)) ^ read64(secret + 8) ^ read64(secret + 16);
        x = (x ^ rotate(x, 49) ^ rotate(x, 24)) * MIX_2;
        x = (x ^ ((x >> 35) + n)) * MIX_2;
        return x ^ x >> 28;
    }
    if (n) {
        uint32_t x = (uint32_t)p[0] << 16 | (uint32_t)p[n >> 1] << 24 | (uint32_t)n << 8 | p[n - 1];
        return finish_small(x ^ read32(secret) ^ read32(secret + 4));
    }
    return finish_small(read64(secret + 56) ^ read64(secret + 64));
}

static uint64_t mix16(const uint8_t *p, const uint8_t *key) {
    return fold(read64(p) ^ read64(key), read64(p + 8) ^ read64(key + 8));
}

static uint64_t up_to_128(const uint8_t *p, uint64_t n) {
    uint64_t sum = n * PRIME64[0];
    for (uint64_t k = (n - 1) / 32 + 1; k-- > 0;) /* pairs from both ends */
        sum += mix16(p + 16 * k, secret + 32 * k) + mix16(p + n - 16 * (k + 1), secret + 32 * k + 16);
    return avalanche(sum);
}

static uint64_t up_to_240(const uint8_t *p, uint64_t n) {
    uint64_t sum = n * PRIME64[0];
    for (uint64_t k = 0; k < 8; k++) sum += mix16(p + 16 * k, secret + 16 * k);
    sum = avalanche(sum);
    for (uint64_t k = 8; k < n / 16; k++) sum += mix16(p + 16 * k, secret + 16 * (k - 8) + 3);
    return avalanche(sum + mix16(p + n - 16, secret + 136 - 17));
}

/* ---- longer inputs ----------------------------------------------------------------------------------------- */

/* Defines NAME(sums, p, n, next), which consumes n > 64 bytes: rounds of 16 stripes, the stripes of a last round that is not
 * whole, and the last 64 bytes. `ADD(sums, at, key)` adds a stripe, `MIX(sums, key)` follows each whole round. Meanwhile bytes at
 * `next` are fetched into the cache: the processor itself does not look beyond the page that is read. */
#define CONSUME(NAME, TARGET, T, ADD, MIX)                                                                   \
    TARGET static void NAME(uint64_t *sums, const uint8_t *p, uint64_t n, const uint8_t *next) {             \
        uint64_t rounds = (n - 1) / ROUND, rest = (n - 1) % ROUND / STRIPE;                                  \
        T sum[LANES * 8 / sizeof(T)];                                                                        \
        memcpy(sum, sums, sizeof sum);                                                                       \
        for (uint64_t r = 0; r < rounds; r++, p += ROUND, next += ROUND) {                                   \
            for (int k = 0; k < STRIPES; k++) PREFETCH(next + k * STRIPE), ADD(sum, p + k * STRIPE, secret + 8 * k); \
            MIX(sum, secret + SECRET - STRIPE);                                                              \
        }                                                                                                    \
        for (uint64_t k = 0; k < rest; k++) PREFETCH(next + k * STRIPE), ADD(sum, p + k * STRIPE, secret + 8 * k); \
        ADD(sum, p + (n - rounds * ROUND) - STRIPE, secret + SECRET - STRIPE - 7);                           \
        memcpy(sums, sum, sizeof sum);                                                                       \
    }

#ifdef HAVE_VECTORS
/* The same for vectors V of 8 * W bytes. PRODUCT multiplies the low halves of numbers of 8 bytes, NEIGHBOURS exchanges
 * the numbers of each pair. */
#define CONSUME_VECTORS(W, TARGET, PRODUCT, NEIGHBOURS)                                                      \
    typedef uint64_t vector##W __attribute__((vector_size(8 * W), aligned(1), may_alias));                   \
    TARGET static inline __attribute__((always_inline)) void add##W(vector##W *sum, const uint8_t *p, const uint8_t *key) { \
        for (int i = 0; i < LANES / W; i++) {                                                                \
            vector##W data = ((const vector##W *)p)[i], mixed = data ^ ((const vector##W *)key)[i];          \
            sum[i] += (vector##W)NEIGHBOURS(data) + (vector##W)PRODUCT(mixed, mixed >> 32);                  \
        }                                                                                                    \
    }                                                                                                        \
    TARGET static inline __attribute__((always_inline)) void mix##W(vector##W *sum, const uint8_t *key) {    \
        vector##W prime = (vector##W){0} + PRIME32[0];                                                       \
        for (int i = 0; i < LANES / W; i++) {                                                                \
            vector##W x = sum[i] ^ sum[i] >> 47 ^ ((const vector##W *)key)[i];                               \
            sum[i] = (vector##W)PRODUCT(x, prime) + ((vector##W)PRODUCT(x >> 32, prime) << 32);              \
        }                                                                                                    \
    }                                                                                                        \
    CONSUME(consume##W, TARGET, vector##W, add##W, mix##W)

#define PRODUCT2(a, b) _mm_mul_epu32((__m128i)(a), (__m128i)(b))
#define NEIGHBOURS2(a) _mm_shuffle_epi32((__m128i)(a), 0x4E)
#define PRODUCT4(a, b) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#define NEIGHBOURS4(a) _mm256_shuffle_epi32((__m256i)(a), 0x4E)
CONSUME_VECTORS(2, , PRODUCT2, NEIGHBOURS2)
CONSUME_VECTORS(4, __attribute__((target("avx2"))), PRODUCT4, NEIGHBOURS4)

static void consume(uint64_t *sums, const uint8_t *p, uint64_t n, const uint8_t *next) {
    if (__builtin_cpu_supports("avx2")) consume4(sums, p, n, next);
    else consume2(sums, p, n, next);
}
#else
static void add1(uint64_t *sum, const uint8_t *p, const uint8_t *key) {
    for (int i = 0; i < LANES; i++) {
        uint64_t mixed = read64(p + 8 * i) ^ read64(key + 8 * i);
        sum[i] += read64(p + 8 * (i ^ 1)) + (mixed & 0xFFFFFFFFU) * (mixed >> 32);
    }
}

static void mix1(uint64_t *sum, const uint8_t *key) {
    for (int i = 0; i < LANES; i++) sum[i] = (sum[i] ^ sum[i] >> 47 ^ read64(key + 8 * i)) * PRIME32[0];
}

CONSUME(consume, , uint64_t, add1, mix1)
#endif

static uint64_t above_240(const uint8_t *p, uint64_t n, const uint8_t *next) {
    uint64_t sums[LANES] = {PRIME32[2], PRIME64[0], PRIME64[1], PRIME64[2], PRIME64[3], PRIME32[1], PRIME64[4], PRIME32[0]};
    uint64_t all = n * PRIME64[0];
    consume(sums, p, n, next);
    for (int i = 0; i < LANES; i += 2) all += fold(sums[i] ^ read64(secret + 11 + 8 * i), sums[i + 1] ^ read64(secret + 19 + 8 * i));
    return avalanche(all);
}

/* The checksum of n bytes; `next` is what will be read after them. */
HIDDEN uint64_t shardex_xxh3(const uint8_t *p, uint64_t n, const uint8_t *next);

HIDDEN uint64_t shardex_xxh3(const uint8_t *p, uint64_t n, const uint8_t *next) {
    if (n <= 16) return up_to_16(p, n);
    if (n <= 128) return up_to_128(p, n);
    return n <= 240 ? up_to_240(p, n) : above_240(p, n, next);
}
