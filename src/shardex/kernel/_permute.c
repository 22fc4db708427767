/* Permutations of numbers, computed one by one; included by `_gather.c`. */

static const int64_t PERMUTE_BYTES = 16; /* permuting a number takes at least as long as copying so much */

/* ---- permute(size, multiply, add, shift, mask, positions, out, inverse, threads) --------------------- */

/* Whether every round is a permutation with a one-step inverse, so that repeating rounds ends below size. */
static int keys_fit(uint64_t size, const uint64_t *multiply, int64_t rounds, int shift, uint64_t mask) {
    if (shift < 1 || shift > 63 || mask >> shift >> shift || mask & (mask + 1) || (size && mask < size - 1)) return 0;
    for (int64_t r = 0; r < rounds; r++)
        if (multiply[r] % 2 == 0) return 0;
    return 1;
}

typedef struct {
    const uint64_t *position, *multiply, *add;
    uint64_t *out, size, mask;
    int64_t rounds;
    int shift, inverse;
} permutation;

enum { AT_ONCE = 1024 }; /* numbers that go through a round together: the processor computes several at the same time */

/* All rounds for some numbers. For the inverse `multiply` holds the inverses, in the same order. */
#define DEFINE_ROUNDS(NAME, NUMBER)                                                                             \
    WIDER static void NAME(const permutation *j, NUMBER *x, int64_t n) {                                        \
        NUMBER mask = (NUMBER)j->mask;                                                                          \
        int shift = j->shift;                                                                                   \
        for (int64_t r = 0; r < j->rounds; r++) {                                                               \
            int64_t round = j->inverse ? j->rounds - 1 - r : r;                                                 \
            NUMBER multiply = (NUMBER)j->multiply[round], add = (NUMBER)j->add[round];                          \
            if (j->inverse)                                                                                     \
                for (int64_t k = 0; k < n; k++) x[k] = (((x[k] ^ x[k] >> shift) - add) * multiply) & mask;      \
            else                                                                                                \
                for (int64_t k = 0; k < n; k++) x[k] = (x[k] * multiply + add) & mask, x[k] ^= x[k] >> shift;   \
        }                                                                                                       \
    }

/* The numbers at `from` to `to`; those that are not below the size go through the rounds again. */
#define DEFINE_PERMUTE(NAME, ROUNDS, NUMBER)                                                                    \
    static void NAME(const void *what, int64_t from, int64_t to) {                                              \
        const permutation *j = what;                                                                            \
        NUMBER x[AT_ONCE];                                                                                      \
        int64_t place[AT_ONCE];                                                                                 \
        for (int64_t left; from < to; from += left) {                                                           \
            left = to - from < AT_ONCE ? to - from : AT_ONCE;                                                   \
            for (int64_t k = 0; k < left; k++) x[k] = (NUMBER)j->position[from + k], place[k] = from + k;       \
            for (int64_t n = left, again; n; n = again) {                                                       \
                ROUNDS(j, x, n);                                                                                \
                again = 0;                                                                                      \
                for (int64_t k = 0; k < n; k++) {                                                               \
                    NUMBER found = x[k];                                                                        \
                    int64_t where = place[k];                                                                   \
                    j->out[where] = found;                                                                      \
                    x[again] = found, place[again] = where; /* no branch: it would be guessed wrong */          \
                    again += found >= j->size;                                                                  \
                }                                                                                               \
            }                                                                                                   \
        }                                                                                                       \
    }

DEFINE_ROUNDS(narrow_rounds, uint32_t)
DEFINE_ROUNDS(wide_rounds, uint64_t)
DEFINE_PERMUTE(permute_narrow, narrow_rounds, uint32_t)
DEFINE_PERMUTE(permute_wide, wide_rounds, uint64_t)

static PyObject *permute(PyObject *self, PyObject *args) {
    Py_buffer multiply, add, position, out;
    unsigned long long size, mask;
    int shift, inverse, threads;
    if (!PyArg_ParseTuple(args, "Ky*y*iKy*w*pi:permute", &size, &multiply, &add, &shift, &mask, &position, &out, &inverse, &threads)) return NULL;
    PyObject *result = NULL;
    int64_t n, rounds, adds, outs;
    if (!length_of(&position, 8, "positions", &n) || !length_of(&multiply, 8, "multiply", &rounds) ||
        !length_of(&add, 8, "add", &adds) || !length_of(&out, 8, "out", &outs))
        goto end;
    if (rounds != adds || outs != n || !keys_fit(size, multiply.buf, rounds, shift, mask)) {
        PyErr_SetString(PyExc_ValueError, "permute: expected odd multipliers, as many adds, an output as long as positions, a mask "
                                          "of ones that covers the size, and a shift by half its bits or more");
        goto end;
    }
    permutation j = {position.buf, multiply.buf, add.buf, out.buf, size, mask, rounds, shift, inverse};
    int64_t bad = -1;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t k = 0; k < n && bad < 0; k++)
        if (j.position[k] >= size) bad = k;
    int narrow = mask <= UINT32_MAX && shift < 32;
    if (bad < 0) in_parts(narrow ? permute_narrow : permute_wide, &j, n, n * PERMUTE_BYTES, threads);
    Py_END_ALLOW_THREADS
    result = answer(bad < 0 ? FINE : OUTSIDE, bad, 0);
end:
    PyBuffer_Release(&multiply), PyBuffer_Release(&add), PyBuffer_Release(&position), PyBuffer_Release(&out);
    return result;
}
