/* Objects of Python made of ranges: text and bytes; included by `_gather.c`. */

/* ---- values(address, size, which, begin, length, text, threads) ------------------------------------------- */

/* Short texts repeat (labels, sources): keep the last object made for each of a few hash slots. */
enum { SLOTS = 64, SHORTEST_LONG = 24 };

static PyObject *one_text(const uint8_t *p, int64_t length, const uint8_t **seen, int64_t *sizes, PyObject **made) {
    if (length >= SHORTEST_LONG) return PyUnicode_DecodeUTF8((const char *)p, (Py_ssize_t)length, NULL);
    uint32_t slot = (uint32_t)length;
    for (int64_t i = 0; i < length; i++) slot = slot * 31 + p[i];
    slot %= SLOTS;
    if (made[slot] && sizes[slot] == length && memcmp(seen[slot], p, (size_t)length) == 0) return Py_NewRef(made[slot]);
    PyObject *text = PyUnicode_DecodeUTF8((const char *)p, (Py_ssize_t)length, NULL);
    if (text) seen[slot] = p, sizes[slot] = length, made[slot] = text; /* borrowed: `make_values` keeps it alive */
    return text;
}

typedef struct {
    const uint8_t *const *source;
    const int64_t *length;
    char *const *target;
} filling;

static void fill_part(const void *whole, int64_t from, int64_t to) {
    const filling *f = whole;
    for (int64_t k = from; k < to; k++) memcpy(f->target[k], f->source[k], (size_t)f->length[k]);
}

/* Makes large bytes objects in two steps: with the GIL the objects, then without it and in threads their content. */
static int make_large(const uint8_t *const *source, const int64_t *length, int64_t n, int64_t total, int threads, PyObject **made) {
    char **target = PyMem_Malloc((size_t)n * sizeof *target);
    int64_t k = 0;
    for (; target && k < n && (made[k] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length[k])); k++) target[k] = PyBytes_AsString(made[k]);
    if (!target) PyErr_NoMemory();
    else if (k == n) {
        filling f = {source, length, target};
        Py_BEGIN_ALLOW_THREADS
        in_parts(fill_part, &f, n, total, threads);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(target);
    return target && k == n;
}

static int make_values(const uint8_t *const *source, const int64_t *length, int64_t n, int text, PyObject **made) {
    const uint8_t *seen[SLOTS];
    int64_t sizes[SLOTS];
    PyObject *last[SLOTS] = {0};
    for (int64_t k = 0; k < n; k++) {
        if (k + AHEAD < n) fetch(source[k + AHEAD], length[k + AHEAD]);
        made[k] = text ? one_text(source[k], length[k], seen, sizes, last)
                       : PyBytes_FromStringAndSize((const char *)source[k], (Py_ssize_t)length[k]);
        if (!made[k]) return 0;
    }
    return 1;
}

static PyObject *list_of(PyObject **made, int64_t n) {
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (int64_t k = 0; list && k < n; k++) {
        PyList_SetItem(list, (Py_ssize_t)k, made[k]);
        made[k] = NULL;
    }
    return list;
}

static PyObject *values(PyObject *self, PyObject *args) {
    enum { LARGE_VALUE = 1024 }; /* bytes on average from which two steps are worthwhile */
    Py_buffer address, size, which, begin, length;
    int text, threads;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*pi:values", &address, &size, &which, &begin, &length, &text, &threads)) return NULL;
    PyObject *result = NULL, **made = NULL;
    const uint8_t **source = NULL;
    int64_t n, k = 0, segment = 0, total = 0;
    table t;
    if (!table_of(&address, &size, &t) || !ranges_of(&which, &begin, &length, &n)) goto end;
    source = PyMem_Malloc((size_t)(n ? n : 1) * sizeof *source);
    made = PyMem_Calloc((size_t)(n ? n : 1), sizeof *made);
    if (!source || !made) {
        PyErr_NoMemory();
        goto end;
    }
    const int64_t *l = length.buf;
    verdict v = check(&t, which.buf, begin.buf, l, n, source, &k, &segment);
    if (v != FINE) {
        result = answer(v, k, segment);
        goto end;
    }
    for (int64_t i = 0; i < n; i++) total = total < INT64_MAX - l[i] ? total + l[i] : total;
    int large = !text && total >= 2 * THREAD_BYTES && total / n >= LARGE_VALUE;
    if (large ? make_large(source, l, n, total, threads, made) : make_values(source, l, n, text, made)) result = list_of(made, n);
end:
    for (int64_t i = 0; made && i < n; i++) Py_XDECREF(made[i]);
    PyMem_Free(source);
    PyMem_Free(made);
    PyBuffer_Release(&address), PyBuffer_Release(&size), PyBuffer_Release(&which), PyBuffer_Release(&begin), PyBuffer_Release(&length);
    return result;
}

/* ---- value(offsets, size of offsets, width of an offset, data, size of data, text, row): one str or bytes ---- */

enum { VALUE_ARGUMENTS = 7 };

static PyObject *value(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != VALUE_ARGUMENTS) return PyErr_Format(PyExc_TypeError, "value: expected 7 arguments, got %zd", count);
    uint64_t n[VALUE_ARGUMENTS];
    for (int k = 0; k < VALUE_ARGUMENTS; k++) {
        n[k] = PyLong_AsUnsignedLongLong(args[k]);
        if (n[k] == UINT64_MAX && PyErr_Occurred()) return NULL;
    }
    uint64_t width = n[2], row = n[6];
    if ((width != 4 && width != 8) || row >= n[1] / width || row + 1 >= n[1] / width)
        return PyErr_Format(PyExc_IndexError, "row %llu lies outside the data", (unsigned long long)row);
    const uint8_t *offsets = (const uint8_t *)(uintptr_t)n[0];
    int64_t from = offset_at(offsets, row, (Py_ssize_t)width), to = offset_at(offsets, row + 1, (Py_ssize_t)width);
    if (from < 0 || to < from || (uint64_t)to > n[4])
        return PyErr_Format(PyExc_ValueError, "row %llu has offsets outside its bytes", (unsigned long long)row);
    const char *data = (const char *)(uintptr_t)n[3] + from;
    return n[5] ? PyUnicode_DecodeUTF8(data, (Py_ssize_t)(to - from), NULL) : PyBytes_FromStringAndSize(data, (Py_ssize_t)(to - from));
}
