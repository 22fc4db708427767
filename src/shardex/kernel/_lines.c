/* Where the lines of a text lie; included by `_gather.c`. */

/* ---- lines(data, at, stop, whole, skip_blank, longest, base, offset, length): where each line lies ------ */

static int is_blank(const uint8_t *p, const uint8_t *end) {
    while (p < end && (*p == ' ' || (*p >= '\t' && *p <= '\r'))) p++;
    return p == end;
}

/* Lines that begin from `at` on and before `stop`, without the newline and the carriage return before it. Offsets, to
 * which `base` is added, have 4 or 8 bytes, lengths 4. `whole` says that the file ends with the data: then its last line
 * needs no newline. It ends early at a line that has no end in the data or is longer than `longest`, and if the output is
 * full. Returns the number of lines that were found and where the next one begins. */
static PyObject *lines(PyObject *self, PyObject *args) {
    Py_buffer data, offset, length;
    Py_ssize_t at, stop, longest, base;
    int whole, skip_blank;
    if (!PyArg_ParseTuple(args, "y*nnppnnw*w*:lines", &data, &at, &stop, &whole, &skip_blank, &longest, &base, &offset, &length))
        return NULL;
    PyObject *result = NULL;
    int64_t room, n = 0;
    if (!length_of(&length, 4, "length", &room)) goto end;
    int wide = offset.len == room * 8;
    if ((!wide && offset.len != room * 4) || (uintptr_t)offset.buf % (wide ? 8 : 4)) {
        PyErr_SetString(PyExc_ValueError, "offset: expected as many aligned items of 4 or 8 bytes as lengths");
        goto end;
    }
    if (at < 0 || at > stop || stop > data.len) {
        PyErr_Format(PyExc_ValueError, "expected 0 <= at <= stop <= %zd, got %zd and %zd", data.len, at, stop);
        goto end;
    }
    int64_t most = wide ? INT64_MAX : (int64_t)UINT32_MAX;
    if (longest < 0 || longest > (int64_t)UINT32_MAX || base < 0 || base > most - data.len) {
        PyErr_SetString(PyExc_ValueError, "lines: expected lengths and offsets that fit the output");
        goto end;
    }
    const uint8_t *begin = data.buf, *p = begin + at, *limit = begin + stop, *last = begin + data.len;
    uint32_t *lengths = length.buf, *narrow = offset.buf;
    uint64_t *wider = offset.buf;
    Py_BEGIN_ALLOW_THREADS
    while (n < room && p < limit) {
        const uint8_t *newline = memchr(p, '\n', (size_t)(last - p)), *end = newline ? newline : last;
        if (!newline && !whole) break;
        if (newline && end > p && end[-1] == '\r') end--;
        if (end - p > longest) break;
        if (!skip_blank || !is_blank(p, end)) {
            uint64_t first = (uint64_t)base + (uint64_t)(p - begin);
            if (wide) wider[n] = first;
            else narrow[n] = (uint32_t)first;
            lengths[n++] = (uint32_t)(end - p);
        }
        p = newline ? newline + 1 : last;
    }
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("(Ln)", (long long)n, (Py_ssize_t)(p - begin));
end:
    PyBuffer_Release(&data), PyBuffer_Release(&offset), PyBuffer_Release(&length);
    return result;
}

/* ---- newlines(data): how many there are ------------------------------------------------------------- */

enum { COUNTED = 4096 }; /* bytes counted in 16 bits, so that the compiler uses vector instructions */

static PyObject *newlines(PyObject *self, PyObject *args) {
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*:newlines", &data)) return NULL;
    const uint8_t *p = data.buf, *last = p + data.len;
    int64_t found = 0;
    Py_BEGIN_ALLOW_THREADS
    while (p < last) {
        int64_t n = last - p < COUNTED ? last - p : COUNTED;
        uint16_t some = 0;
        for (int64_t k = 0; k < n; k++) some = (uint16_t)(some + (p[k] == '\n'));
        found += some;
        p += n;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return PyLong_FromLongLong(found);
}
