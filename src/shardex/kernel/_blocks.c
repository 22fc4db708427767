/* Blocks of files: reading ahead, checksums, and the flags of those that are checked; included by `_gather.c`. */

static const int64_t ADVISE_BYTES = 64 << 10; /* starting a read from a disk takes as long as copying so much */

/* ---- advise(address, size, which, begin, length, gap, most, threads): start reading without waiting -------- */

typedef struct {
    uintptr_t begin, end;
} span;

static int by_begin(const void *a, const void *b) {
    uintptr_t x = ((const span *)a)->begin, y = ((const span *)b)->begin;
    return (x > y) - (x < y);
}

static uintptr_t page_size(void) {
#ifdef MADV_WILLNEED
    return (uintptr_t)sysconf(_SC_PAGESIZE);
#else
    return 1;
#endif
}

/* Pages of the ranges. Ranges that are not open or lie outside are skipped: a later read raises for them. */
static int64_t pages_of(const table *t, const int64_t *which, const int64_t *begin, const int64_t *length, int64_t n,
                        uintptr_t page, span *out) {
    int64_t found = 0;
    for (int64_t k = 0; k < n; k++) {
        int64_t s = which[k];
        if (s < 0 || s >= t->segments || !t->address[s] || begin[k] < 0 || length[k] <= 0) continue;
        if ((uint64_t)begin[k] > t->size[s] || (uint64_t)length[k] > t->size[s] - (uint64_t)begin[k]) continue;
        uintptr_t from = (uintptr_t)t->address[s] + (uintptr_t)begin[k];
        out[found].begin = from & ~(page - 1);
        out[found++].end = (from + (uintptr_t)length[k] + page - 1) & ~(page - 1);
    }
    return found;
}

/* Sorts the spans and joins those that are at most `gap` bytes apart, up to `most` bytes of all; returns how many are left. */
static int64_t join_spans(span *spans, int64_t n, uintptr_t gap, uintptr_t most) {
    int64_t made = 0;
    qsort(spans, (size_t)n, sizeof *spans, by_begin);
    for (int64_t k = 0; k < n && most;) {
        span s = spans[k++];
        for (; k < n && spans[k].begin <= s.end + gap; k++)
            if (spans[k].end > s.end) s.end = spans[k].end;
        if (s.end - s.begin > most) s.end = s.begin + most;
        most -= s.end - s.begin;
        spans[made++] = s;
    }
    return made;
}

/* Errors are ignored: the system refuses pages that are not mapped from a file, which need no reading. */
static void advise_part(const void *whole, int64_t from, int64_t to) {
#ifdef MADV_WILLNEED
    const span *spans = whole;
    for (; from < to; from++) madvise((void *)spans[from].begin, (size_t)(spans[from].end - spans[from].begin), MADV_WILLNEED);
#else
    (void)whole, (void)from, (void)to;
#endif
}

static PyObject *advise(PyObject *self, PyObject *args) {
    Py_buffer address, size, which, begin, length;
    Py_ssize_t gap, most;
    int threads;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*nni:advise", &address, &size, &which, &begin, &length, &gap, &most, &threads)) return NULL;
    PyObject *result = NULL;
    span *spans = NULL;
    int64_t n;
    table t;
    if (!table_of(&address, &size, &t) || !ranges_of(&which, &begin, &length, &n)) goto end;
    if (gap < 0 || most < 0) {
        PyErr_SetString(PyExc_ValueError, "advise: expected a gap and a largest number of bytes from 0 on");
        goto end;
    }
    if (!(spans = PyMem_Malloc((size_t)(n ? n : 1) * sizeof *spans))) {
        PyErr_NoMemory();
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    uintptr_t page = page_size();
    n = pages_of(&t, which.buf, begin.buf, length.buf, n, page, spans);
    n = join_spans(spans, n, (uintptr_t)gap, (uintptr_t)most & ~(page - 1));
    in_parts(advise_part, spans, n, n * ADVISE_BYTES, threads);
    Py_END_ALLOW_THREADS
    result = PyLong_FromLong(-1);
end:
    PyMem_Free(spans);
    PyBuffer_Release(&address), PyBuffer_Release(&size), PyBuffer_Release(&which), PyBuffer_Release(&begin), PyBuffer_Release(&length);
    return result;
}

/* ---- checksums(address, size, which, begin, length, sums, width, threads) and first_difference(the same) ---- */

/* Writes the checksum of each range to `sums`, its low half if those have 4 bytes; or compares them, and `first` is the first that differs. */
typedef struct {
    const uint8_t *const *source;
    const int64_t *length;
    void *sums;
    int half, compare;
    int64_t *first;
} hashing;

static void lower(int64_t *first, int64_t k) {
#ifdef HAVE_THREADS
    int64_t now = __atomic_load_n(first, __ATOMIC_RELAXED);
    while (k < now && !__atomic_compare_exchange_n(first, &now, k, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
#else
    if (k < *first) *first = k;
#endif
}

static void hash_part(const void *whole, int64_t from, int64_t to) {
    const hashing *h = whole;
    for (int64_t k = from; k < to; k++) {
        uint64_t sum = shardex_xxh3(h->source[k], (uint64_t)h->length[k], h->source[k + 1 < to ? k + 1 : k]);
        if (!h->compare) {
            if (h->half) ((uint32_t *)h->sums)[k] = (uint32_t)sum;
            else ((uint64_t *)h->sums)[k] = sum;
        } else if (h->half ? (uint32_t)sum != ((uint32_t *)h->sums)[k] : sum != ((uint64_t *)h->sums)[k]) {
            lower(h->first, k);
            return;
        }
    }
}

/* Returns a tuple of one number: -1, or the first range whose checksum differs. A plain number names a closed segment. */
static PyObject *hash_ranges(PyObject *args, int compare) {
    Py_buffer address, size, which, begin, length, sums;
    int width, threads;
    const char *format = compare ? "y*y*y*y*y*y*ii:first_difference" : "y*y*y*y*y*w*ii:checksums";
    if (!PyArg_ParseTuple(args, format, &address, &size, &which, &begin, &length, &sums, &width, &threads)) return NULL;
    PyObject *result = NULL;
    const uint8_t **source = NULL;
    int64_t n, m, k = 0, segment = 0;
    table t;
    if (!table_of(&address, &size, &t) || !ranges_of(&which, &begin, &length, &n)) goto end;
    int half = width == 4;
    if (!length_of(&sums, half ? 4 : 8, "sums", &m)) goto end;
    if (m != n) {
        PyErr_Format(PyExc_ValueError, "sums: expected %lld numbers, got %lld", (long long)n, (long long)m);
        goto end;
    }
    if (!(source = PyMem_Malloc((size_t)(n ? n : 1) * sizeof *source))) {
        PyErr_NoMemory();
        goto end;
    }
    const int64_t *l = length.buf;
    int64_t first = INT64_MAX, total = 0;
    verdict v;
    Py_BEGIN_ALLOW_THREADS
    v = check(&t, which.buf, begin.buf, l, n, source, &k, &segment);
    if (v == FINE) {
        for (int64_t i = 0; i < n; i++) total = total < INT64_MAX - l[i] ? total + l[i] : total;
        hashing h = {source, l, sums.buf, half, compare, &first};
        in_parts(hash_part, &h, n, total, threads);
    }
    Py_END_ALLOW_THREADS
    result = v != FINE ? answer(v, k, segment) : Py_BuildValue("(L)", (long long)(first == INT64_MAX ? -1 : first));
end:
    PyMem_Free(source);
    PyBuffer_Release(&address), PyBuffer_Release(&size), PyBuffer_Release(&which), PyBuffer_Release(&begin);
    PyBuffer_Release(&length), PyBuffer_Release(&sums);
    return result;
}

static PyObject *checksums(PyObject *self, PyObject *args) {
    return hash_ranges(args, 0);
}

static PyObject *first_difference(PyObject *self, PyObject *args) {
    return hash_ranges(args, 1);
}

/* ---- unchecked_rows(flags, shift, origin, starts, rows, bits, items) and unchecked_ranges(flags, shift, origin, which, begin, length) ----
 * Bytes lie in blocks of 1 << shift bytes, each with a flag. `origin` is the number of a segment's first byte, counted over all
 * blocks. Both return the numbers of the blocks of rows or ranges whose flag is 0, ascending, each once, as bytes of int64. */

typedef struct {
    const uint8_t *flags;
    const int64_t *origin;
    int64_t blocks, segments, *found, count, room, last; /* last: the block that was looked at last */
    int shift;
} lookup;

typedef enum { LOOKED, NO_BLOCK, NO_MEMORY } looked;

/* Looks at the blocks of `length` bytes from byte `begin` of a segment on. */
static looked look(lookup *u, int64_t segment, int64_t begin, int64_t length) {
    if (!length) return LOOKED;
    int64_t origin = u->origin[segment];
    if (begin < 0 || length < 0 || origin < 0 || begin > INT64_MAX - origin || length > INT64_MAX - origin - begin) return NO_BLOCK;
    int64_t b = (origin + begin) >> u->shift, end = (origin + begin + length - 1) >> u->shift;
    if (end >= u->blocks) return NO_BLOCK;
    for (; b <= end; b++) {
        if (u->flags[b] || b == u->last) continue;
        if (u->count == u->room) {
            int64_t more = u->room ? 2 * u->room : 64;
            int64_t *grown = realloc(u->found, (size_t)more * sizeof *grown);
            if (!grown) return NO_MEMORY;
            u->found = grown, u->room = more;
        }
        u->found[u->count++] = u->last = b;
    }
    return LOOKED;
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void sort_distinct(lookup *u) {
    int64_t kept = 0, sorted = 1;
    for (int64_t k = 1; k < u->count && sorted; k++) sorted = u->found[k - 1] < u->found[k];
    if (sorted) return;
    qsort(u->found, (size_t)u->count, sizeof *u->found, by_value);
    for (int64_t k = 0; k < u->count; k++)
        if (!k || u->found[k] != u->found[k - 1]) u->found[kept++] = u->found[k];
    u->count = kept;
}

static int lookup_of(const Py_buffer *flags, int shift, const Py_buffer *origin, lookup *u) {
    *u = (lookup){.flags = flags->buf, .blocks = flags->len, .origin = origin->buf, .shift = shift, .last = -1};
    if (shift < 0 || shift > 62) {
        PyErr_Format(PyExc_ValueError, "shift: expected a number from 0 to 62, got %d", shift);
        return 0;
    }
    return length_of(origin, 8, "origin", &u->segments);
}

static PyObject *blocks_found(lookup *u, looked how, verdict v, int64_t k) {
    if (v != FINE) return answer(v, k, 0);
    if (how == NO_MEMORY) return PyErr_NoMemory();
    if (how == NO_BLOCK) return PyErr_Format(PyExc_ValueError, "range %lld of the request lies outside the blocks", (long long)k);
    return PyBytes_FromStringAndSize((const char *)u->found, (Py_ssize_t)u->count * 8);
}

static PyObject *unchecked_rows(PyObject *self, PyObject *args) {
    Py_buffer flags, origin, start, row;
    int shift;
    long long bits, items;
    if (!PyArg_ParseTuple(args, "y*iy*y*y*LL:unchecked_rows", &flags, &shift, &origin, &start, &row, &bits, &items)) return NULL;
    PyObject *result = NULL;
    lookup u = {0};
    places p;
    int64_t n, k = 0;
    if (!lookup_of(&flags, shift, &origin, &u) || !places_of(&start, u.segments, &p) || !length_of(&row, 8, "rows", &n)) goto end;
    if (bits < 0 || items < 0 || (bits && items > INT64_MAX / bits - 8)) {
        PyErr_SetString(PyExc_ValueError, "unchecked_rows: expected a width and a number of items from 0 on that fit 63 bits");
        goto end;
    }
    const int64_t *r = row.buf;
    int64_t total = p.starts[p.segments], most = bits ? (INT64_MAX - 8) / bits - items : INT64_MAX;
    verdict v = FINE;
    looked how = LOOKED;
    Py_BEGIN_ALLOW_THREADS
    for (k = 0; k < n && bits && items; k++) {
        if (r[k] < 0 || r[k] >= total) {
            v = OUTSIDE;
            break;
        }
        int64_t s = segment_of(&p, r[k]), begun = p.starts[s], local = begun < 0 ? -1 : r[k] - begun;
        if (local < 0 || local > most) {
            how = NO_BLOCK;
            break;
        }
        int64_t begin = local * bits / 8, end = ((local + items) * bits + 7) / 8;
        if ((how = look(&u, s, begin, end - begin)) != LOOKED) break;
    }
    if (v == FINE && how == LOOKED) sort_distinct(&u);
    Py_END_ALLOW_THREADS
    result = blocks_found(&u, how, v, k);
end:
    free(u.found);
    PyBuffer_Release(&flags), PyBuffer_Release(&origin), PyBuffer_Release(&start), PyBuffer_Release(&row);
    return result;
}

static PyObject *unchecked_ranges(PyObject *self, PyObject *args) {
    Py_buffer flags, origin, which, begin, length;
    int shift;
    if (!PyArg_ParseTuple(args, "y*iy*y*y*y*:unchecked_ranges", &flags, &shift, &origin, &which, &begin, &length)) return NULL;
    PyObject *result = NULL;
    lookup u = {0};
    int64_t n, k = 0;
    if (!lookup_of(&flags, shift, &origin, &u) || !ranges_of(&which, &begin, &length, &n)) goto end;
    const int64_t *w = which.buf, *b = begin.buf, *l = length.buf;
    verdict v = FINE;
    looked how = LOOKED;
    Py_BEGIN_ALLOW_THREADS
    for (k = 0; k < n; k++) {
        if (w[k] < 0 || w[k] >= u.segments) {
            v = OUTSIDE;
            break;
        }
        if ((how = look(&u, w[k], b[k], l[k])) != LOOKED) break;
    }
    if (v == FINE && how == LOOKED) sort_distinct(&u);
    Py_END_ALLOW_THREADS
    result = blocks_found(&u, how, v, k);
end:
    free(u.found);
    PyBuffer_Release(&flags), PyBuffer_Release(&origin), PyBuffer_Release(&which), PyBuffer_Release(&begin), PyBuffer_Release(&length);
    return result;
}
