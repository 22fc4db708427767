/* The gather kernel: copy many ranges of many mapped buffers into one.
 *
 * A table of segments is two arrays, the address and the size of each buffer; an address of zero means
 * "not opened yet". Every function first checks all of its ranges against that table and only then copies,
 * so a wrong range raises and nothing is copied. When a range lies in a segment that is not open, the
 * function returns the number of that segment, and the caller opens it and calls again; -1 means done.
 * An error caused by one segment carries its number as a second argument; `buffers.py` adds the name.
 * That module also owns the tables and keeps the buffers alive. `numpy_kernel.py` has the same functions in numpy.
 * The files that are included here are one module with it: they share its tables, threads and copies.
 */
#ifdef __linux__
#define _GNU_SOURCE /* sched_getcpu, CPU_SET */
#endif
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifndef _WIN32
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#define HAVE_THREADS 1
#endif

enum { AHEAD = 8, FETCHED = 2048 }; /* a range so many further on is fetched into the cache, so many bytes of it at most */
#if defined(__GLIBC__) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDER __attribute__((target_clones("avx2", "default"))) /* stores of 32 bytes where the processor has them: 1.5x as fast */
#else
#define WIDER
#endif

#include "_checksum.c" /* PREFETCH */
#include "_segments.c"
#include "_threads.c"

/* ---- copying ---------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *const *source;
    const int64_t *length, *target; /* NULL: every range is `width` bytes, laid end to end */
    int64_t width, stride, from, to;
    uint8_t *out;
} job;

static inline void fetch(const uint8_t *p, int64_t length) {
    for (int64_t b = 0; b < FETCHED && b < length; b += 64) PREFETCH(p + b);
}

#define COPY_ITEMS(T)                                                                                        \
    for (int64_t k = j->from; k < j->to; k++) {                                                              \
        if (k + AHEAD < j->to) PREFETCH(j->source[k + AHEAD]);                                               \
        memcpy(j->out + k * sizeof(T), j->source[k], sizeof(T));                                             \
    }

static void copy_fixed(const job *j) {
    int64_t width = j->width;
    switch (width) {
    case 1: COPY_ITEMS(uint8_t) return;
    case 2: COPY_ITEMS(uint16_t) return;
    case 4: COPY_ITEMS(uint32_t) return;
    case 8: COPY_ITEMS(uint64_t) return;
    }
    for (int64_t k = j->from, run; k < j->to; k += run) {
        for (run = 1; k + run < j->to && j->source[k + run] == j->source[k] + run * width; run++) {} /* adjacent rows are copied at once */
        if (k + AHEAD < j->to) fetch(j->source[k + AHEAD], width);
        memcpy(j->out + k * width, j->source[k], (size_t)(run * width));
    }
}

static void copy_ranges(const job *j) {
    for (int64_t k = j->from; k < j->to; k++) {
        const uint8_t *from = j->source[k];
        uint8_t *to = j->target ? j->out + j->target[k] : j->out + k * j->stride;
        int64_t length = j->length[k];
        while (j->target && k + 1 < j->to && j->source[k + 1] == from + length && j->out + j->target[k + 1] == to + length)
            length += j->length[++k]; /* adjacent */
        if (k + AHEAD < j->to) fetch(j->source[k + AHEAD], j->length[k + AHEAD]);
        if (length) memcpy(to, from, (size_t)length);
        if (!j->target) memset(to + length, 0, (size_t)(j->stride - length));
    }
}

/* Copies the ranges from `from` to `to`. */
static void copy_part(const void *whole, int64_t from, int64_t to) {
    job j = *(const job *)whole;
    j.from = from, j.to = to;
    if (j.length) copy_ranges(&j);
    else copy_fixed(&j);
}

typedef struct {
    const stretch *stretches;
    int64_t width;
    uint8_t *out;
} stretch_job;

static void copy_stretches(const void *whole, int64_t from, int64_t to) {
    const stretch_job *j = whole;
    int64_t first = 0; /* of the stretch */
    for (const stretch *s = j->stretches; from < to; first += s++->rows) {
        int64_t here = first + s->rows - from < to - from ? first + s->rows - from : to - from;
        if (here <= 0) continue;
        memcpy(j->out + from * j->width, s->source + (from - first) * j->width, (size_t)(here * j->width));
        from += here;
    }
}

/* ---- fixed(address, size, starts, rows, width, out, threads) ---------------------------------------- */

static PyObject *fixed(PyObject *self, PyObject *args) {
    Py_buffer address, size, start, row, out;
    Py_ssize_t width;
    int threads;
    if (!PyArg_ParseTuple(args, "y*y*y*y*nw*i:fixed", &address, &size, &start, &row, &width, &out, &threads)) return NULL;
    PyObject *result = NULL;
    const uint8_t **source = NULL;
    int64_t n, k = 0, segment = 0;
    verdict v;
    places p;
    table t;
    if (!table_of(&address, &size, &t) || !places_of(&start, t.segments, &p) || !length_of(&row, 8, "rows", &n)) goto end;
    if (width < 0 || (width && n > PY_SSIZE_T_MAX / width) || out.len != n * width) {
        PyErr_Format(PyExc_ValueError, "out: expected %lld rows of %zd bytes, got %zd bytes", (long long)n, width, out.len);
        goto end;
    }
    stretch stretches[MOST_STRETCHES];
    if (stretches_of(&t, &p, row.buf, n, (uint64_t)width, 1, stretches)) {
        stretch_job j = {stretches, width, out.buf};
        Py_BEGIN_ALLOW_THREADS
        in_parts(copy_stretches, &j, n, n * width, threads);
        Py_END_ALLOW_THREADS
        result = answer(FINE, 0, 0);
        goto end;
    }
    if (!(source = PyMem_Malloc((size_t)(n ? n : 1) * sizeof *source))) {
        PyErr_NoMemory();
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    v = place(&t, &p, row.buf, n, (uint64_t)width, 1, source, NULL, &k, &segment);
    if (v == FINE) {
        job j = {.source = source, .width = width, .out = out.buf};
        in_parts(copy_part, &j, n, n * width, threads);
    }
    Py_END_ALLOW_THREADS
    result = answer(v, k, segment);
end:
    PyMem_Free(source);
    PyBuffer_Release(&address), PyBuffer_Release(&size), PyBuffer_Release(&start), PyBuffer_Release(&row), PyBuffer_Release(&out);
    return result;
}

/* ---- locate(address, size, starts, rows, width, item, which, begin, length) -------------------------- */

static int64_t offset_at(const uint8_t *base, uint64_t k, Py_ssize_t width) {
    if (width == 4) {
        int32_t x;
        memcpy(&x, base + k * 4, 4);
        return x;
    }
    int64_t x;
    memcpy(&x, base + k * 8, 8);
    return x;
}

/* Locates consecutive rows; 0 if some are not open or outside, or have offsets that do not rise: then each is looked at. */
static int locate_stretches(const table *t, const places *p, const int64_t *rows, int64_t n, Py_ssize_t width, int64_t item, int64_t *which,
                            int64_t *begin, int64_t *length) {
    stretch stretches[MOST_STRETCHES];
    int64_t count = stretches_of(t, p, rows, n, (uint64_t)width, 2, stretches), most = INT64_MAX / item, wrong = 0, k = 0;
    for (int64_t s = 0; s < count; s++) {
        int64_t from = offset_at(stretches[s].source, 0, width);
        wrong |= from < 0;
        for (int64_t i = 1; i <= stretches[s].rows && !wrong; i++, k++) {
            int64_t to = offset_at(stretches[s].source, (uint64_t)i, width);
            wrong = to < from || to > most;
            which[k] = stretches[s].segment, begin[k] = wrong ? 0 : from * item, length[k] = wrong ? 0 : (to - from) * item;
            from = to;
        }
    }
    return count && !wrong;
}

static PyObject *locate(PyObject *self, PyObject *args) {
    Py_buffer address, size, start, row, which, begin, length;
    Py_ssize_t width, item;
    if (!PyArg_ParseTuple(args, "y*y*y*y*nnw*w*w*:locate", &address, &size, &start, &row, &width, &item, &which, &begin, &length))
        return NULL;
    PyObject *result = NULL;
    const uint8_t **source = NULL;
    int64_t n, k = 0, segment = 0;
    verdict v;
    places p;
    table t;
    if (!table_of(&address, &size, &t) || !places_of(&start, t.segments, &p) || !length_of(&row, 8, "rows", &n)) goto end;
    if ((width != 4 && width != 8) || item < 1 || which.len != n * 8 || begin.len != n * 8 || length.len != n * 8) {
        PyErr_SetString(PyExc_ValueError, "locate: expected offsets of 4 or 8 bytes, items of at least 1, and outputs as long as rows");
        goto end;
    }
    int64_t *w = which.buf, *b = begin.buf, *l = length.buf, most = INT64_MAX / item;
    if (locate_stretches(&t, &p, row.buf, n, width, item, w, b, l)) {
        result = answer(FINE, 0, 0);
        goto end;
    }
    if (!(source = PyMem_Malloc((size_t)(n ? n : 1) * sizeof *source))) {
        PyErr_NoMemory();
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    v = place(&t, &p, row.buf, n, (uint64_t)width, 2, source, w, &k, &segment);
    for (int64_t i = 0; v == FINE && i < n; i++) {
        if (i + AHEAD < n) PREFETCH(source[i + AHEAD]);
        int64_t from = offset_at(source[i], 0, width), to = offset_at(source[i], 1, width);
        if (from < 0 || to < from || to > most) {
            v = BROKEN, k = i, segment = w[i];
            break;
        }
        b[i] = from * item;
        l[i] = (to - from) * item;
    }
    Py_END_ALLOW_THREADS
    result = answer(v, k, segment);
end:
    PyMem_Free(source);
    PyBuffer_Release(&address), PyBuffer_Release(&size), PyBuffer_Release(&start), PyBuffer_Release(&row);
    PyBuffer_Release(&which), PyBuffer_Release(&begin), PyBuffer_Release(&length);
    return result;
}

/* ---- ranges(address, size, which, begin, length, out, stride, threads) ------------------------------ */

static PyObject *ranges(PyObject *self, PyObject *args) {
    Py_buffer address, size, which, begin, length, out;
    Py_ssize_t stride;
    int threads;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*w*ni:ranges", &address, &size, &which, &begin, &length, &out, &stride, &threads)) return NULL;
    PyObject *result = NULL;
    const uint8_t **source = NULL;
    int64_t *target = NULL, n;
    table t;
    if (!table_of(&address, &size, &t) || !ranges_of(&which, &begin, &length, &n)) goto end;
    source = PyMem_Malloc((size_t)(n ? n : 1) * sizeof *source);
    target = PyMem_Malloc((size_t)(n ? n : 1) * sizeof *target);
    if (!source || !target) {
        PyErr_NoMemory();
        goto end;
    }
    const int64_t *l = length.buf;
    int64_t k = 0, segment = 0, total = 0;
    verdict v;
    Py_BEGIN_ALLOW_THREADS
    v = check(&t, which.buf, begin.buf, l, n, source, &k, &segment);
    for (int64_t i = 0; v == FINE && i < n; i++) { /* target of each range, and whether it fits */
        int64_t room = stride < 0 ? l[i] : stride;
        target[i] = total;
        if (l[i] > room || room > out.len - total) v = OVERFLOWS, k = i;
        else total += room;
    }
    if (v == FINE && total != out.len) v = OVERFLOWS, k = n;
    if (v == FINE) {
        job j = {.source = source, .length = l, .target = stride < 0 ? target : NULL, .stride = stride, .out = out.buf};
        in_parts(copy_part, &j, n, total, threads);
    }
    Py_END_ALLOW_THREADS
    result = answer(v, k, segment);
end:
    PyMem_Free(source);
    PyMem_Free(target);
    PyBuffer_Release(&address), PyBuffer_Release(&size), PyBuffer_Release(&which), PyBuffer_Release(&begin);
    PyBuffer_Release(&length), PyBuffer_Release(&out);
    return result;
}

/* ---- placed(address, size, which, begin, length, target, out, threads): ranges at given places of the output ---- */

static PyObject *placed(PyObject *self, PyObject *args) {
    Py_buffer address, size, which, begin, length, target, out;
    int threads;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*w*i:placed", &address, &size, &which, &begin, &length, &target, &out, &threads)) return NULL;
    PyObject *result = NULL;
    const uint8_t **source = NULL;
    int64_t n, targets;
    table t;
    if (!table_of(&address, &size, &t) || !ranges_of(&which, &begin, &length, &n) || !length_of(&target, 8, "target", &targets)) goto end;
    if (targets != n) {
        PyErr_Format(PyExc_ValueError, "target: expected %lld numbers, got %lld", (long long)n, (long long)targets);
        goto end;
    }
    if (!(source = PyMem_Malloc((size_t)(n ? n : 1) * sizeof *source))) {
        PyErr_NoMemory();
        goto end;
    }
    const int64_t *l = length.buf, *to = target.buf;
    int64_t k = 0, segment = 0, total = 0;
    verdict v;
    Py_BEGIN_ALLOW_THREADS
    v = check(&t, which.buf, begin.buf, l, n, source, &k, &segment);
    for (int64_t i = 0; v == FINE && i < n; i++) {
        if (to[i] < 0 || to[i] > out.len || l[i] > out.len - to[i]) v = OVERFLOWS, k = i;
        else total = total < INT64_MAX - l[i] ? total + l[i] : total; /* overlapping ranges may add up to more than the output */
    }
    if (v == FINE) {
        job j = {.source = source, .length = l, .target = to, .out = out.buf};
        in_parts(copy_part, &j, n, total, threads);
    }
    Py_END_ALLOW_THREADS
    result = answer(v, k, segment);
end:
    PyMem_Free(source);
    PyBuffer_Release(&address), PyBuffer_Release(&size), PyBuffer_Release(&which), PyBuffer_Release(&begin);
    PyBuffer_Release(&length), PyBuffer_Release(&target), PyBuffer_Release(&out);
    return result;
}

/* ---- the other functions ------------------------------------------------------------------------------------ */

#include "_pieces.c"        /* pieces, gaps */
#include "_fit.c"           /* best_fit, fit_in_order */
#include "_values.c"        /* values, value */
#include "_json_lines.c"    /* json */
#include "_blocks.c"        /* advise, checksums, first_difference, unchecked_rows, unchecked_ranges */
#include "_lines.c"         /* lines, newlines */
#include "_permute.c"       /* permute */
#include "_memory.c"        /* memory */

/* ---- the module --------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"fixed", fixed, METH_VARARGS, "Copy rows of one width, found by number, end to end."},
    {"locate", locate, METH_VARARGS, "Turn row numbers into byte ranges through arrays of offsets."},
    {"ranges", ranges, METH_VARARGS, "Copy byte ranges end to end (stride < 0) or one per stride, zero-filled."},
    {"placed", placed, METH_VARARGS, "Copy byte ranges to given places of the output."},
    {"pieces", pieces, METH_VARARGS, "Cut intervals into the pieces of samples of one width."},
    {"gaps", gaps, METH_VARARGS, "Fill what no run of an array covers with a value."},
    {"best_fit", best_fit, METH_VARARGS, "Put items into bins, best-fit decreasing."},
    {"fit_in_order", fit_in_order, METH_VARARGS, "Cut items into groups that fit, one after another."},
    {"values", values, METH_VARARGS, "Make one bytes or str object per range."},
    {"value", (PyCFunction)(void (*)(void))value, METH_FASTCALL, "Make one bytes or str object, found by offsets."},
    {"advise", advise, METH_VARARGS, "Ask the system to start reading the pages of ranges."},
    {"checksums", checksums, METH_VARARGS, "Compute the xxh3-64 of ranges."},
    {"first_difference", first_difference, METH_VARARGS, "Compare the xxh3-64 of ranges."},
    {"unchecked_rows", unchecked_rows, METH_VARARGS, "Find the blocks of rows that are not flagged."},
    {"unchecked_ranges", unchecked_ranges, METH_VARARGS, "Find the blocks of ranges that are not flagged."},
    {"memory", new_memory, METH_O, "Return memory of some bytes that later calls reuse."},
    {"clear_memory", clear_memory, METH_NOARGS, "Free the memory that is kept for reuse; return the sizes of its pieces."},
    {"json", json, METH_VARARGS, "Parse lines of JSON into columns."},
    {"lines", lines, METH_VARARGS, "Find offset and length of each line."},
    {"newlines", newlines, METH_VARARGS, "Count newlines."},
    {"permute", permute, METH_VARARGS, "Map positions through a keyed permutation of [0, size)."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_gather", "The gather kernel; see gather.py.", 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__gather(void) {
#ifdef HAVE_THREADS
    static int registered;
    if (!registered) registered = pthread_atfork(NULL, NULL, after_fork) == 0;
#endif
    if (!memory_type && !(memory_type = PyType_FromSpec(&memory_spec))) return NULL;
    return PyModuleDef_Init(&module);
}
