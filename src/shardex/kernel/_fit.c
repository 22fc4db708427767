/* Which items are put together: into bins of a capacity, or into groups of consecutive ones; included by `_gather.c`. */

/* ---- best_fit(sizes, capacity, bins, order): bin of each item, best-fit decreasing; items in the order of bins -- */

/* Bins with the same room form a list, the last one first. A bit for each room says whether its list has a bin, a bit for
 * each 64 rooms whether one of them has: the smallest room that suffices is found in a few steps. */
typedef struct {
    int64_t *last, *before; /* last: of each room, the bin that was put there last; before: the bin under it; -1: none */
    uint64_t *bits, *groups;
    int64_t words;
} rooms;

static int lowest(uint64_t x) {
#if defined(__GNUC__)
    return __builtin_ctzll(x);
#else
    int n = 0;
    for (; !(x & 1); x >>= 1) n++;
    return n;
#endif
}

static void put_bin(rooms *r, int64_t room, int64_t bin) {
    r->before[bin] = r->last[room];
    r->last[room] = bin;
    r->bits[room >> 6] |= 1ULL << (room & 63);
    r->groups[room >> 12] |= 1ULL << (room >> 6 & 63);
}

static void take_bin(rooms *r, int64_t room) {
    r->last[room] = r->before[r->last[room]];
    if (r->last[room] >= 0) return;
    r->bits[room >> 6] &= ~(1ULL << (room & 63));
    if (!r->bits[room >> 6]) r->groups[room >> 12] &= ~(1ULL << (room >> 6 & 63));
}

/* The smallest room of at least `size` that has a bin, or -1. */
static int64_t smallest(const rooms *r, int64_t size) {
    int64_t word = size >> 6;
    uint64_t here = r->bits[word] & (UINT64_MAX << (size & 63));
    if (here) return word * 64 + lowest(here);
    if (++word >= r->words) return -1;
    int64_t group = word >> 6;
    uint64_t some = r->groups[group] & (UINT64_MAX << (word & 63));
    while (!some && (group + 1) * 64 < r->words) some = r->groups[++group];
    if (!some) return -1;
    word = group * 64 + lowest(some);
    return word * 64 + lowest(r->bits[word]);
}

static PyObject *best_fit(PyObject *self, PyObject *args) {
    Py_buffer size, bin, sorted;
    Py_ssize_t capacity;
    if (!PyArg_ParseTuple(args, "y*nw*w*:best_fit", &size, &capacity, &bin, &sorted)) return NULL;
    PyObject *result = NULL;
    int64_t n, m, outs, *begin = NULL, *number = NULL, bins = 0, bad = -1;
    rooms r = {0};
    if (!length_of(&size, 8, "sizes", &n) || !length_of(&bin, 8, "bins", &m) || !length_of(&sorted, 8, "order", &outs)) goto end;
    if (m != n || outs != n || capacity < 1 || capacity > (1LL << 40)) {
        PyErr_SetString(PyExc_ValueError, "best_fit: expected a capacity from 1 to 2**40, and as many bins and places as sizes");
        goto end;
    }
    const int64_t *s = size.buf;
    int64_t *b = bin.buf, *order = sorted.buf;
    r.words = capacity / 64 + 1;
    begin = PyMem_Calloc((size_t)capacity + 2, sizeof *begin);
    number = PyMem_Malloc((size_t)(n ? n : 1) * sizeof *number);
    r.before = PyMem_Malloc((size_t)(n ? n : 1) * sizeof *r.before);
    r.last = PyMem_Malloc(((size_t)capacity + 1) * sizeof *r.last);
    r.bits = PyMem_Calloc((size_t)r.words, sizeof *r.bits);
    r.groups = PyMem_Calloc((size_t)(r.words / 64 + 1), sizeof *r.groups);
    if (!begin || !number || !r.before || !r.last || !r.bits || !r.groups) {
        PyErr_NoMemory();
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    for (int64_t k = 0; k < n && bad < 0; k++) {
        if (s[k] < 1 || s[k] > capacity) bad = k;
        else begin[capacity - s[k] + 1]++;
    }
    if (bad < 0) {
        for (int64_t c = 0; c < capacity; c++) begin[c + 1] += begin[c];
        for (int64_t k = 0; k < n; k++) order[begin[capacity - s[k]]++] = k; /* descending sizes, equal ones in order */
        for (int64_t c = 0; c <= capacity; c++) r.last[c] = -1;
        for (int64_t i = 0; i < n; i++) {
            int64_t k = order[i], room = smallest(&r, s[k]), into = bins;
            if (room >= 0) into = r.last[room], take_bin(&r, room);
            else room = capacity, bins++;
            b[k] = into;
            put_bin(&r, room - s[k], into);
        }
        bins = 0;
        for (int64_t k = 0; k < n; k++) number[k] = -1;
        for (int64_t k = 0; k < n; k++) { /* bins are numbered in the order of their first items */
            if (number[b[k]] < 0) number[b[k]] = bins++;
            b[k] = number[b[k]];
        }
        int64_t *next = number, total = 0; /* the place of the next item of each bin */
        for (int64_t k = 0; k < bins; k++) next[k] = 0;
        for (int64_t k = 0; k < n; k++) next[b[k]]++;
        for (int64_t k = 0; k < bins; k++) {
            int64_t items = next[k];
            next[k] = total, total += items;
        }
        for (int64_t k = 0; k < n; k++) order[next[b[k]]++] = k;
    }
    Py_END_ALLOW_THREADS
    if (bad >= 0) PyErr_Format(PyExc_ValueError, "best_fit: expected sizes from 1 to %zd, got %lld at %lld", capacity, (long long)s[bad], (long long)bad);
    else result = PyLong_FromLongLong(bins);
end:
    PyMem_Free(begin), PyMem_Free(number), PyMem_Free(r.before), PyMem_Free(r.last), PyMem_Free(r.bits), PyMem_Free(r.groups);
    PyBuffer_Release(&size), PyBuffer_Release(&bin), PyBuffer_Release(&sorted);
    return result;
}

/* ---- fit_in_order(sizes, run, limit, most, padded, ends): groups of items that fit, one after another ------ */

/* A group is cut when the next item would exceed the limit, when it has `most` items, and at the end of each run. */
static PyObject *fit_in_order(PyObject *self, PyObject *args) {
    Py_buffer size, end;
    long long run, limit, most;
    int padded;
    if (!PyArg_ParseTuple(args, "y*LLLpw*:fit_in_order", &size, &run, &limit, &most, &padded, &end)) return NULL;
    PyObject *result = NULL;
    int64_t n, m, groups = 0, bad = -1;
    if (!length_of(&size, 8, "sizes", &n) || !length_of(&end, 8, "ends", &m)) goto end;
    if (m != n || run < 1 || limit < 1 || most < 1) {
        PyErr_SetString(PyExc_ValueError, "fit_in_order: expected a run, a limit and a number of items from 1 on, and as many ends as sizes");
        goto end;
    }
    const int64_t *s = size.buf;
    int64_t *e = end.buf;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t begin = 0; begin < n && bad < 0;) {
        int64_t stop = n - begin < run ? n : begin + run, first = begin, used = 0; /* used: the longest item, or the sum */
        for (int64_t k = begin; k < stop; k++) {
            if (s[k] < 1 || s[k] > limit) {
                bad = k;
                break;
            }
            int64_t longest = s[k] > used ? s[k] : used;
            int over = padded ? longest > limit / (k - first + 1) : s[k] > limit - used;
            if (over || k - first >= most) {
                e[groups++] = k;
                first = k, used = s[k];
            } else used = padded ? longest : used + s[k];
        }
        e[groups++] = begin = stop;
    }
    Py_END_ALLOW_THREADS
    if (bad >= 0) PyErr_Format(PyExc_ValueError, "fit_in_order: expected sizes from 1 to %lld, got %lld at %lld", limit, (long long)s[bad], (long long)bad);
    else result = PyLong_FromLongLong(groups);
end:
    PyBuffer_Release(&size), PyBuffer_Release(&end);
    return result;
}
