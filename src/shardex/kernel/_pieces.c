/* Pieces of a stream of tokens, and the gaps between runs of bytes; included by `_gather.c`. */

/* ---- pieces(begins, ends, firsts, behinds, rows, step, width, begin, length, target, ids, positions, bounds, offsets, threads) ----
 * Sample r is made of the entries firsts[r] to behinds[r] of a table of intervals, from the position r * step on, at most
 * `width` elements. For each piece of the samples `rows`: its begin, length, and place among all samples. For each element
 * the number of its piece (from 1 on; 0 is padding) and its position in it. For each sample the bounds of its pieces: 0, the
 * end of each, and the width if there is padding. Outputs from `ids` on may be empty: they are not made.
 * Returns the number of pieces; if there may be more than `begin` has room for, nothing is made, and -1 - their number returned. */

typedef struct {
    const int64_t *begins, *ends, *firsts, *behinds, *rows;
    int64_t step, width;
    int64_t *begin, *length, *target, *offsets;
    int32_t *ids, *positions, *bounds;
    int64_t *made; /* of each sample the number of its first piece, and the number of pieces at the end */
} cut;

WIDER static void mark_piece(int32_t *ids, int32_t *positions, int32_t length, int32_t number) {
    if (ids)
        for (int32_t i = 0; i < length; i++) ids[i] = number;
    if (positions)
        for (int32_t i = 0; i < length; i++) positions[i] = i;
}

/* Mark the elements of samples; their pieces are made. */
static void mark_samples(const void *whole, int64_t from, int64_t to) {
    const cut *c = whole;
    for (int64_t k = from; k < to; k++) {
        int64_t begun = k * c->width, end = begun;
        for (int64_t p = c->made[k]; p < c->made[k + 1]; p++) {
            int64_t at = c->target[p];
            mark_piece(c->ids ? c->ids + at : NULL, c->positions ? c->positions + at : NULL, (int32_t)c->length[p], (int32_t)(p - c->made[k] + 1));
            end = at + c->length[p];
        }
        size_t gap = (size_t)(begun + c->width - end) * sizeof(int32_t);
        if (c->ids) memset(c->ids + end, 0, gap);
        if (c->positions) memset(c->positions + end, 0, gap);
    }
}

/* Make the pieces of sample k; returns the number of pieces made so far. */
static int64_t cut_sample(const cut *c, int64_t k, int64_t made) {
    int64_t row = c->rows[k], low = row * c->step, at = 0, begun = k * c->width;
    int64_t b = c->bounds ? c->offsets[k] : 0;
    if (c->bounds) c->bounds[b++] = 0;
    for (int64_t e = c->firsts[row]; e < c->behinds[row] && at < c->width; e++) {
        int64_t from = c->begins[e] > low ? c->begins[e] : low;
        if (c->ends[e] <= from) continue;
        uint64_t whole = (uint64_t)c->ends[e] - (uint64_t)from, room = (uint64_t)(c->width - at);
        int64_t length = (int64_t)(whole < room ? whole : room);
        c->begin[made] = from, c->length[made] = length, c->target[made] = begun + at;
        made++;
        at += length;
        if (c->bounds) c->bounds[b++] = (int32_t)at;
    }
    if (c->bounds && at < c->width) c->bounds[b++] = (int32_t)c->width;
    if (c->bounds) c->offsets[k + 1] = b;
    return made;
}

static PyObject *pieces(PyObject *self, PyObject *args) {
    enum { ROWS = 4, BEGIN = 5, IDS = 8, BOUNDS = 10, OFFSETS = 11, BUFFERS = 12 };
    static const char *names[BUFFERS] = {"begins", "ends",   "firsts", "behinds",   "rows",   "begin",
                                         "length", "target", "ids",    "positions", "bounds", "offsets"};
    Py_buffer b[BUFFERS];
    Py_ssize_t step, width;
    int threads;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*nnw*w*w*w*w*w*w*i:pieces", &b[0], &b[1], &b[2], &b[3], &b[4], &step, &width, &b[5], &b[6],
                          &b[7], &b[8], &b[9], &b[10], &b[11], &threads))
        return NULL;
    PyObject *result = NULL;
    int64_t sizes[BUFFERS], made = 0, most = 0, k = 0, *firsts_made = NULL;
    for (int i = 0; i < BUFFERS; i++)
        if (!length_of(&b[i], i >= IDS && i < OFFSETS ? 4 : 8, names[i], &sizes[i])) goto end;
    int64_t entries = sizes[0], samples = sizes[2], n = sizes[ROWS], room = sizes[BEGIN];
    int fit = sizes[1] == entries && sizes[3] == samples && sizes[6] == room && sizes[7] == room && width > 0 && width <= INT32_MAX;
    fit = fit && (step == 0 || step == width) && samples <= INT64_MAX / width && n <= INT64_MAX / width - 2;
    for (int i = IDS; i < BOUNDS && fit; i++) fit = !sizes[i] || sizes[i] == n * width;
    if (!fit || (sizes[BOUNDS] && sizes[OFFSETS] != n + 1)) {
        PyErr_SetString(PyExc_ValueError, "pieces: expected tables, samples and outputs of one size each, a width of at least 1 and a step of it or 0");
        goto end;
    }
    cut c = {b[0].buf, b[1].buf, b[2].buf, b[3].buf, b[4].buf, step, width, b[5].buf, b[6].buf, b[7].buf, b[11].buf,
             sizes[8] ? b[8].buf : NULL, sizes[9] ? b[9].buf : NULL, sizes[10] ? b[10].buf : NULL, NULL};
    if (!(c.made = firsts_made = PyMem_Malloc((size_t)(n + 1) * sizeof *firsts_made))) {
        PyErr_NoMemory();
        goto end;
    }
    verdict v = FINE;
    Py_BEGIN_ALLOW_THREADS
    for (k = 0; k < n; k++) {
        int64_t row = c.rows[k];
        if (row < 0 || row >= samples || c.firsts[row] < 0 || c.behinds[row] < c.firsts[row] || c.behinds[row] > entries) {
            v = OUTSIDE;
            break;
        }
        int64_t some = c.behinds[row] - c.firsts[row]; /* at most one piece for each element */
        most += some < width ? some : width;
    }
    if (v == FINE && most <= room && c.bounds && sizes[BOUNDS] < most + 2 * n) v = OVERFLOWS, k = 0;
    if (v == FINE && most <= room) {
        if (c.bounds) c.offsets[0] = 0;
        for (k = 0; k < n; k++) {
            if (k + AHEAD < n) {
                int64_t next = c.firsts[c.rows[k + AHEAD]];
                if (next < entries) PREFETCH(c.begins + next), PREFETCH(c.ends + next);
            }
            c.made[k] = made;
            made = cut_sample(&c, k, made);
        }
        c.made[n] = made;
        int64_t marked = (c.ids ? 1 : 0) + (c.positions ? 1 : 0); /* four bytes each: filling takes a quarter of the time of copying */
        if (marked && n) in_parts(mark_samples, &c, n, n * width * marked, threads);
    }
    Py_END_ALLOW_THREADS
    result = v != FINE ? answer(v, k, 0) : PyLong_FromLongLong(most <= room ? made : -1 - most);
end:
    PyMem_Free(firsts_made);
    for (int i = 0; i < BUFFERS; i++) PyBuffer_Release(&b[i]);
    return result;
}

/* ---- gaps(target, length, value, out): fill what no run covers with a value ---------------------------------- */

/* The first run that does not lie behind the one before it, or not inside the output; -1 if there is none. */
static int64_t bad_run(const int64_t *target, const int64_t *length, int64_t n, int64_t room) {
    for (int64_t k = 0, at = 0; k < n; k++) {
        if (target[k] < at || target[k] > room || length[k] < 0 || length[k] > room - target[k]) return k;
        at = target[k] + length[k];
    }
    return -1;
}

static void fill(uint8_t *out, int64_t from, int64_t to, const void *value, int64_t item) {
    switch (item) {
#define FILL(T)                                                                                              \
    {                                                                                                        \
        T one, *o = (T *)out;                                                                                \
        memcpy(&one, value, sizeof one);                                                                     \
        for (int64_t i = from; i < to; i++) o[i] = one;                                                      \
        break;                                                                                               \
    }
    case 1: FILL(uint8_t)
    case 2: FILL(uint16_t)
    case 4: FILL(uint32_t)
    default: FILL(uint64_t)
    }
}

static PyObject *gaps(PyObject *self, PyObject *args) {
    Py_buffer target, length, value, out;
    if (!PyArg_ParseTuple(args, "y*y*y*w*:gaps", &target, &length, &value, &out)) return NULL;
    PyObject *result = NULL;
    int64_t n, lengths, room, item = value.len, at = 0, bad;
    if (item != 1 && item != 2 && item != 4 && item != 8) {
        PyErr_Format(PyExc_ValueError, "value: expected 1, 2, 4 or 8 bytes, got %zd", value.len);
        goto end;
    }
    if (!length_of(&target, 8, "target", &n) || !length_of(&length, 8, "length", &lengths) || !length_of(&out, item, "out", &room)) goto end;
    if (lengths != n) {
        PyErr_SetString(PyExc_ValueError, "gaps: expected target and length of one size");
        goto end;
    }
    const int64_t *to = target.buf, *l = length.buf;
    Py_BEGIN_ALLOW_THREADS
    bad = bad_run(to, l, n, room);
    for (int64_t k = 0; k < n && bad < 0; k++) {
        fill(out.buf, at, to[k], value.buf, item);
        at = to[k] + l[k];
    }
    if (bad < 0) fill(out.buf, at, room, value.buf, item);
    Py_END_ALLOW_THREADS
    result = answer(bad < 0 ? FINE : OVERFLOWS, bad, 0);
end:
    PyBuffer_Release(&target), PyBuffer_Release(&length), PyBuffer_Release(&value), PyBuffer_Release(&out);
    return result;
}
