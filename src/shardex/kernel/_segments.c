/* Tables of segments: the arguments of most functions, and where rows and ranges lie in memory; included by `_gather.c`. */

typedef enum { FINE, CLOSED, OUTSIDE, SHORT, BROKEN, OVERFLOWS } verdict;

typedef struct {
    const uint64_t *address, *size;
    int64_t segments;
} table;

/* ---- arguments ------------------------------------------------------------------------------------ */

static int length_of(const Py_buffer *b, int64_t item, const char *name, int64_t *n) {
    if (b->len % item || (uintptr_t)b->buf % (uintptr_t)item) {
        PyErr_Format(PyExc_ValueError, "%s: expected aligned items of %lld bytes, got %zd bytes", name, (long long)item, b->len);
        return 0;
    }
    *n = b->len / item;
    return 1;
}

static int table_of(const Py_buffer *address, const Py_buffer *size, table *t) {
    int64_t sizes;
    if (!length_of(address, 8, "address", &t->segments) || !length_of(size, 8, "size", &sizes)) return 0;
    if (sizes != t->segments) {
        PyErr_Format(PyExc_ValueError, "expected as many sizes as addresses, got %lld and %lld", (long long)sizes,
                     (long long)t->segments);
        return 0;
    }
    t->address = address->buf;
    t->size = size->buf;
    return 1;
}

/* ValueError(message, segment) */
static PyObject *blame(int64_t segment, const char *message, int64_t at) {
    PyObject *text = PyUnicode_FromFormat(message, (long long)at);
    PyObject *arguments = text ? Py_BuildValue("(NL)", text, (long long)segment) : NULL;
    if (arguments) PyErr_SetObject(PyExc_ValueError, arguments);
    Py_XDECREF(arguments);
    return NULL;
}

static PyObject *answer(verdict v, int64_t at, int64_t segment) {
    switch (v) {
    case FINE: return PyLong_FromLong(-1);
    case CLOSED: return PyLong_FromLongLong(segment);
    case OUTSIDE: return PyErr_Format(PyExc_IndexError, "row %lld of the request lies outside the data", (long long)at);
    case SHORT: return blame(segment, "expected every range inside it, range %lld of the request is not", at);
    case BROKEN: return blame(segment, "expected offsets that rise from 0, those of range %lld of the request do not", at);
    default: return PyErr_Format(PyExc_ValueError, "range %lld of the request does not fit the output", (long long)at);
    }
}

/* ---- which segment holds a row ---------------------------------------------------------------------- */

typedef struct {
    const int64_t *starts;
    int64_t segments;
    double per_row; /* most segments have the same size: one multiplication guesses the segment of a row */
} places;

static int64_t segment_of(const places *p, int64_t row) {
    int64_t low = 0, high = p->segments;
    double near = (double)row * p->per_row;
    int64_t guess = near < (double)high ? (int64_t)near : 0; /* compared first: a cast of a number too large for int64 is undefined */
    if (p->starts[guess] <= row && row < p->starts[guess + 1]) return guess;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (p->starts[middle] <= row) low = middle;
        else high = middle;
    }
    return low;
}

/* `starts` begins with 0, so segment_of always finds a segment of the table that starts at the row or before it,
 * whatever the other numbers are. The caller ensures that they ascend: checking it would cost more than reading. */
static int places_of(const Py_buffer *b, int64_t segments, places *p) {
    int64_t n;
    const int64_t *s = b->buf;
    if (!length_of(b, 8, "starts", &n)) return 0;
    if (n != segments + 1 || s[0] != 0) {
        PyErr_Format(PyExc_ValueError, "starts: expected %lld numbers from 0 on, got %lld", (long long)segments + 1,
                     (long long)n);
        return 0;
    }
    p->starts = s;
    p->segments = segments;
    p->per_row = segments && s[1] > 0 ? 1.0 / (double)s[1] : 0.0;
    return 1;
}

/* Find the address of each row's item of `width` bytes; `items` consecutive ones must fit into its buffer. */
static verdict place(const table *t, const places *p, const int64_t *rows, int64_t n, uint64_t width, uint64_t items,
                     const uint8_t **source, int64_t *which, int64_t *at, int64_t *segment) {
    int64_t total = p->starts[p->segments];
    uint64_t most = UINT64_MAX / (width ? width : 1) - items;
    for (int64_t k = 0; k < n; k++) {
        *at = k;
        if (rows[k] < 0 || rows[k] >= total) return OUTSIDE;
        int64_t s = *segment = segment_of(p, rows[k]);
        uint64_t local = (uint64_t)rows[k] - (uint64_t)p->starts[s];
        if (!t->address[s]) return CLOSED;
        if (local > most || (local + items) * width > t->size[s]) return SHORT;
        source[k] = (const uint8_t *)(uintptr_t)t->address[s] + local * width;
        if (which) which[k] = s;
    }
    return FINE;
}

/* Rows that follow each other lie in few stretches of memory: no place is looked up for each of them. */
enum { MOST_STRETCHES = 64 };

typedef struct {
    const uint8_t *source;
    int64_t rows, segment;
} stretch;

static int are_consecutive(const int64_t *rows, int64_t n) {
    uint64_t first = n ? (uint64_t)rows[0] : 0, different = 0;
    if (n < 2 || (uint64_t)rows[1] != first + 1 || (uint64_t)rows[n - 1] != first + (uint64_t)n - 1) return 0;
    for (int64_t k = 0; k < n; k++) different |= (uint64_t)rows[k] ^ (first + (uint64_t)k);
    return !different;
}

/* The stretches of consecutive rows; 0 if `place` must look at each row: some are not open, outside, or in many segments. */
static int64_t stretches_of(const table *t, const places *p, const int64_t *rows, int64_t n, uint64_t width, uint64_t items, stretch *out) {
    int64_t total = p->starts[p->segments], found = 0;
    if (!are_consecutive(rows, n) || rows[0] < 0 || rows[n - 1] >= total) return 0;
    uint64_t most = UINT64_MAX / (width ? width : 1) - items;
    for (int64_t row = rows[0], s = segment_of(p, row), left = n; left; s++) {
        if (s >= p->segments || found == MOST_STRETCHES || p->starts[s] < 0 || p->starts[s] > row) return 0;
        if (p->starts[s + 1] <= row) continue; /* a segment without rows */
        int64_t here = p->starts[s + 1] - row < left ? p->starts[s + 1] - row : left;
        uint64_t local = (uint64_t)(row - p->starts[s]), last = local + (uint64_t)here - 1;
        if (!t->address[s] || last > most || (last + items) * width > t->size[s]) return 0;
        out[found++] = (stretch){(const uint8_t *)(uintptr_t)t->address[s] + local * width, here, s};
        row += here, left -= here;
    }
    return found;
}

/* ---- ranges of segments ------------------------------------------------------------------------------------- */

static verdict check(const table *t, const int64_t *which, const int64_t *begin, const int64_t *length, int64_t n,
                     const uint8_t **source, int64_t *at, int64_t *segment) {
    for (int64_t k = 0; k < n; k++) {
        int64_t s = which[k];
        *at = k;
        *segment = s;
        if (s < 0 || s >= t->segments) return OUTSIDE;
        if (!t->address[s]) return CLOSED;
        if (begin[k] < 0 || length[k] < 0 || (uint64_t)begin[k] > t->size[s] || (uint64_t)length[k] > t->size[s] - (uint64_t)begin[k])
            return SHORT;
        source[k] = (const uint8_t *)(uintptr_t)t->address[s] + begin[k];
    }
    return FINE;
}

static int ranges_of(const Py_buffer *which, const Py_buffer *begin, const Py_buffer *length, int64_t *n) {
    int64_t b, l;
    if (!length_of(which, 8, "which", n) || !length_of(begin, 8, "begin", &b) || !length_of(length, 8, "length", &l)) return 0;
    if (b == *n && l == *n) return 1;
    PyErr_SetString(PyExc_ValueError, "expected which, begin and length of one size");
    return 0;
}
