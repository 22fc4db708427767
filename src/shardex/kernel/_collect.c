/* Collects the values of samples, one dict per sample, in one buffer per field: the fast path of writing.
 *
 * A field has a kind, and buffers that belong to Python (columns/collect.py): `data`, for values of different sizes also
 * `offsets`, for optional fields `valid`, one byte per row. A value is copied if it is exactly of the expected type: an
 * int in range, a str, an array of the dtype and shape. For every other value a function returns the number of its
 * field, and Python converts it and resumes there. Values of fields of the kind ENCODED become bytes by a Python
 * function, those of the kind CALL are passed to one that keeps them.
 *
 * A sample counts when it is complete: what was stored of one that is not is overwritten by the next. Between the look
 * at a buffer and the copy into it no Python code runs, so buffers can be replaced at any other time.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { FIXED, RAGGED, INTEGER, UNSIGNED, FLOAT, BOOL, TEXT, BYTES, ENCODED, CALL, KINDS };
enum { DATA, OFFSETS, VALID, BUFFERS };
enum { MOST_SIZES = 16 };

typedef enum { STORED, GENERAL, FULL, FAILED } outcome;

typedef struct {
    PyObject *name;
    PyObject *detail; /* arrays: the dtype; ENCODED and CALL: the function */
    PyObject *types;  /* numbers: tuple of the other types that are converted here */
    int kind, optional, sizes;
    Py_ssize_t item;              /* bytes of an element; offsets count elements */
    Py_ssize_t width;             /* bytes of a row; of RAGGED those of a step of the first size */
    Py_ssize_t shape[MOST_SIZES]; /* of arrays; the first size of RAGGED is free */
    long long low, high;
    Py_buffer buffer[BUFFERS];
} field;

typedef struct {
    PyObject_HEAD
    PyObject *array; /* numpy.ndarray */
    field *fields;
    Py_ssize_t count, rows, room, needed;
    const void *current; /* the sample that is being stored, only to compare it */
} collector;

static PyObject *dtype_name;

/* Whether a sample is still the one that is being stored: Python code, which runs for some values, may append another. */
static int is_current(const collector *self, const void *sample) {
    if (sample && self->current == sample) return 1;
    PyErr_SetString(PyExc_RuntimeError, "expected one sample at a time, got another one while one is appended; append from one thread");
    return 0;
}

static int varies(const field *f) { return f->kind == RAGGED || f->kind == TEXT || f->kind == BYTES || f->kind == ENCODED; }

/* ---- values ------------------------------------------------------------------------------------------------- */

static void copy_strided(char **to, const char *from, int sizes, const Py_ssize_t *shape, const Py_ssize_t *strides, Py_ssize_t item) {
    if (!sizes) {
        memcpy(*to, from, (size_t)item);
        *to += item;
        return;
    }
    for (Py_ssize_t k = 0; k < shape[0]; k++, from += strides[0])
        copy_strided(to, from, sizes - 1, shape + 1, strides + 1, item);
}

static int is_contiguous(const Py_buffer *view) {
    Py_ssize_t expected = view->itemsize;
    for (int k = view->ndim - 1; k >= 0; k--) {
        if (view->shape[k] != 1 && view->strides[k] != expected) return view->len == 0;
        expected *= view->shape[k];
    }
    return 1;
}

/* Where `size` more bytes of a field go that has values of different sizes; NULL if they do not fit. */
static char *place(collector *self, field *f, Py_ssize_t size) {
    int64_t *offsets = f->buffer[OFFSETS].buf;
    Py_ssize_t used = (Py_ssize_t)offsets[self->rows] * f->item;
    if (size > f->buffer[DATA].len - used) {
        self->needed = used + size;
        return NULL;
    }
    offsets[self->rows + 1] = (used + size) / f->item;
    return (char *)f->buffer[DATA].buf + used;
}

static outcome store_array(collector *self, field *f, PyObject *value) {
    if ((PyObject *)Py_TYPE(value) != self->array) return GENERAL;
    PyObject *dtype = PyObject_GetAttr(value, dtype_name);
    if (!dtype) return FAILED;
    int same = dtype == f->detail;
    Py_DECREF(dtype);
    if (!same) return GENERAL;
    Py_buffer view;
    if (PyObject_GetBuffer(value, &view, PyBUF_STRIDES)) {
        PyErr_Clear();
        return GENERAL;
    }
    outcome result = GENERAL;
    int free_sizes = f->kind == RAGGED;
    if (view.ndim != f->sizes || view.itemsize != f->item) goto done;
    for (int k = free_sizes; k < view.ndim; k++)
        if (view.shape[k] != f->shape[k]) goto done;
    char *to = free_sizes ? place(self, f, view.len) : (char *)f->buffer[DATA].buf + self->rows * f->width;
    result = to ? STORED : FULL;
    if (!to) goto done;
    if (is_contiguous(&view)) memcpy(to, view.buf, (size_t)view.len);
    else copy_strided(&to, view.buf, view.ndim, view.shape, view.strides, view.itemsize);
done:
    PyBuffer_Release(&view);
    return result;
}

static outcome store_bytes(collector *self, field *f, PyObject *value) {
    const char *from;
    Py_ssize_t size;
    if (f->kind == TEXT) {
        if (!PyUnicode_CheckExact(value)) return GENERAL;
        from = PyUnicode_AsUTF8AndSize(value, &size);
        if (!from) {
            if (PyErr_ExceptionMatches(PyExc_MemoryError)) return FAILED;
            PyErr_Clear(); /* half of a surrogate pair */
            return GENERAL;
        }
    } else {
        if (!PyBytes_CheckExact(value)) return GENERAL;
        from = PyBytes_AsString(value);
        size = PyBytes_Size(value);
    }
    char *to = place(self, f, size);
    if (!to) return FULL;
    memcpy(to, from, (size_t)size);
    return STORED;
}

static outcome store_encoded(collector *self, field *f, PyObject *value) {
    const void *sample = self->current;
    PyObject *made = PyObject_CallFunctionObjArgs(f->detail, value, NULL);
    if (!made) return FAILED;
    outcome result = !is_current(self, sample) ? FAILED : self->rows < self->room ? store_bytes(self, f, made) : FULL;
    Py_DECREF(made);
    return result;
}

static int has_type(PyObject *types, PyObject *value) {
    Py_ssize_t count = PyTuple_Size(types);
    for (Py_ssize_t k = 0; k < count; k++)
        if (PyTuple_GetItem(types, k) == (PyObject *)Py_TYPE(value)) return 1;
    return 0;
}

static outcome store_integer(collector *self, field *f, PyObject *value) {
    if (PyLong_CheckExact(value)) Py_INCREF(value);
    else if (!has_type(f->types, value)) return GENERAL;
    else if (!(value = PyNumber_Index(value))) return FAILED;
    int overflow = 0;
    char *to = (char *)f->buffer[DATA].buf + self->rows * f->width;
    if (f->kind == UNSIGNED) {
        unsigned long long number = PyLong_AsUnsignedLongLong(value);
        overflow = number == (unsigned long long)-1 && PyErr_Occurred();
        if (overflow) PyErr_Clear();
        uint64_t stored = number;
        if (!overflow) memcpy(to, &stored, 8);
    } else {
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        overflow = overflow || number < f->low || number > f->high;
        if (!overflow) {
            int8_t one = (int8_t)number;
            int16_t two = (int16_t)number;
            int32_t four = (int32_t)number;
            int64_t eight = number;
            memcpy(to, f->width == 1 ? (void *)&one : f->width == 2 ? (void *)&two : f->width == 4 ? (void *)&four : (void *)&eight, (size_t)f->width);
        }
    }
    Py_DECREF(value);
    return overflow ? GENERAL : STORED;
}

static outcome store_float(collector *self, field *f, PyObject *value) {
    if (!PyFloat_CheckExact(value) && !has_type(f->types, value)) return GENERAL;
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred()) return FAILED;
    char *to = (char *)f->buffer[DATA].buf + self->rows * f->width;
    if (f->width == 8) {
        memcpy(to, &number, 8);
        return STORED;
    }
    if (isfinite(number) && !(number >= -FLT_MAX && number <= FLT_MAX)) return GENERAL;
    float rounded = (float)number;
    memcpy(to, &rounded, 4);
    return STORED;
}

static outcome store_bool(collector *self, field *f, PyObject *value) {
    int truth = value == Py_True;
    if (!truth && value != Py_False) {
        if (!has_type(f->types, value)) return GENERAL;
        truth = PyObject_IsTrue(value);
        if (truth < 0) return FAILED;
    }
    ((char *)f->buffer[DATA].buf)[self->rows] = (char)truth;
    return STORED;
}

/* What stands for a missing value, below a null: zeros, or nothing. */
static void store_filler(collector *self, field *f) {
    ((char *)f->buffer[VALID].buf)[self->rows] = 0;
    if (varies(f)) {
        int64_t *offsets = f->buffer[OFFSETS].buf;
        offsets[self->rows + 1] = offsets[self->rows];
    } else {
        memset((char *)f->buffer[DATA].buf + self->rows * f->width, 0, (size_t)f->width);
    }
}

static outcome store(collector *self, field *f, PyObject *value) {
    if (f->kind == CALL) {
        PyObject *nothing = PyObject_CallFunctionObjArgs(f->detail, value, NULL);
        Py_XDECREF(nothing);
        return nothing ? STORED : FAILED;
    }
    if (self->rows >= self->room) return FULL; /* Python code of a field before has appended a sample */
    if (f->optional) {
        if (value == Py_None) {
            store_filler(self, f);
            return STORED;
        }
        ((char *)f->buffer[VALID].buf)[self->rows] = 1;
    }
    switch (f->kind) {
    case FIXED:
    case RAGGED: return store_array(self, f, value);
    case TEXT:
    case BYTES: return store_bytes(self, f, value);
    case ENCODED: return store_encoded(self, f, value);
    case FLOAT: return store_float(self, f, value);
    case BOOL: return store_bool(self, f, value);
    default: return store_integer(self, f, value);
    }
}

/* ---- samples ------------------------------------------------------------------------------------------------ */

enum { DONE = -1 };

/* Store the fields of a sample from number `first` on, that one from `given` if it is not NULL. Returns DONE, or where it
 * stopped: k, a value of field k that needs Python, or none; count, all fields but others too; count + 1 + k, field k is
 * full; -2, an error. */
static Py_ssize_t fill(collector *self, PyObject *sample, Py_ssize_t first, PyObject *given) {
    if (self->rows >= self->room) return self->count + 1 + first;
    for (Py_ssize_t k = first; k < self->count; k++) {
        field *f = &self->fields[k];
        PyObject *value = given;
        given = NULL;
        if (!value) {
            value = PyDict_GetItemWithError(sample, f->name);
            self->needed = k;
            if (!value) return PyErr_Occurred() ? -2 : k;
        }
        Py_INCREF(value);
        outcome result = store(self, f, value);
        Py_DECREF(value);
        if (result != FAILED && !is_current(self, sample)) result = FAILED;
        if (result == FAILED) {
            self->needed = k;
            return -2;
        }
        if (result == GENERAL) return k;
        if (result == FULL) return self->count + 1 + k;
    }
    return PyDict_Size(sample) == self->count ? DONE : self->count;
}

static Py_ssize_t size_of(const collector *self) {
    Py_ssize_t total = 0;
    for (Py_ssize_t k = 0; k < self->count; k++) {
        const field *f = &self->fields[k];
        if (f->kind == CALL) continue;
        if (varies(f)) {
            total += (Py_ssize_t)((const int64_t *)f->buffer[OFFSETS].buf)[self->rows] * f->item;
            if (f->kind == RAGGED) total += 8 * self->rows;
        } else {
            total += self->rows * f->width;
        }
        if (f->optional) total += self->rows;
    }
    return total;
}

static PyObject *append(collector *self, PyObject *sample) {
    if (!PyDict_Check(sample)) return PyErr_Format(PyExc_TypeError, "expected a dict");
    self->current = sample;
    Py_ssize_t at = fill(self, sample, 0, NULL);
    if (at == -2) return NULL;
    if (at == DONE) {
        self->rows++;
        self->current = NULL;
    }
    return PyLong_FromSsize_t(at);
}

/* resume(sample, first, value): as append, from a field on, and without counting the sample. */
static PyObject *resume(collector *self, PyObject *args) {
    PyObject *sample, *value;
    Py_ssize_t first;
    if (!PyArg_ParseTuple(args, "O!nO:resume", &PyDict_Type, &sample, &first, &value)) return NULL;
    if (first < 0 || first >= self->count) return PyErr_Format(PyExc_IndexError, "expected the number of a field, got %zd", first);
    self->needed = first; /* the field of an error */
    if (!is_current(self, sample)) return NULL;
    Py_ssize_t at = fill(self, sample, first, value);
    return at == -2 ? NULL : PyLong_FromSsize_t(at);
}

/* commit(sample): count a sample of which `resume` has stored the last field. */
static PyObject *commit(collector *self, PyObject *sample) {
    if (!is_current(self, sample)) return NULL;
    if (self->rows >= self->room) return PyErr_Format(PyExc_IndexError, "expected a stored sample");
    self->rows++;
    self->current = NULL;
    Py_RETURN_NONE;
}

/* extend(iterator, before, limit, most): append samples until there are `most` rows with the `before` ones, or `limit` bytes
 * at a row at which the size is compared: 1, 2, 4, 8 and every 16th. Returns where and for which sample it stopped:
 * (-1, None) at the end of the samples, (-2, None) at the limit. A sample that is no dict is returned with 0. */
static PyObject *extend(collector *self, PyObject *args) {
    PyObject *iterator, *sample;
    Py_ssize_t before, limit, most;
    if (!PyArg_ParseTuple(args, "Onnn:extend", &iterator, &before, &limit, &most)) return NULL;
    if (!PyIter_Check(iterator)) return PyErr_Format(PyExc_TypeError, "expected an iterator");
    for (;;) {
        sample = PyIter_Next(iterator);
        self->needed = -1; /* an error is one of the iterator */
        if (!sample) return PyErr_Occurred() ? NULL : Py_BuildValue("nO", (Py_ssize_t)-1, Py_None);
        self->current = sample;
        Py_ssize_t at = PyDict_CheckExact(sample) ? fill(self, sample, 0, NULL) : 0;
        if (at == -2) {
            Py_DECREF(sample);
            return NULL;
        }
        if (at != DONE) return Py_BuildValue("nN", at, sample);
        self->current = NULL;
        Py_DECREF(sample);
        Py_ssize_t rows = before + ++self->rows;
        int compared = rows > 16 ? rows % 16 == 0 : (rows & (rows - 1)) == 0;
        if (rows >= most || (compared && size_of(self) >= limit)) return Py_BuildValue("nO", (Py_ssize_t)-2, Py_None);
        if (compared && PyErr_CheckSignals()) return NULL;
    }
}

/* ---- buffers ------------------------------------------------------------------------------------------------ */

/* set_buffers(field, data, offsets, valid): use these from now on; their content is kept by the caller. */
static PyObject *set_buffers(collector *self, PyObject *args) {
    Py_ssize_t number;
    PyObject *given[BUFFERS];
    if (!PyArg_ParseTuple(args, "nOOO:set_buffers", &number, &given[DATA], &given[OFFSETS], &given[VALID])) return NULL;
    if (number < 0 || number >= self->count) return PyErr_Format(PyExc_IndexError, "expected the number of a field, got %zd", number);
    Py_buffer views[BUFFERS];
    memset(views, 0, sizeof views);
    for (int k = 0; k < BUFFERS; k++) {
        if (given[k] == Py_None || !PyObject_GetBuffer(given[k], &views[k], PyBUF_WRITABLE)) continue;
        while (k--) PyBuffer_Release(&views[k]);
        return NULL;
    }
    field *f = &self->fields[number];
    for (int k = 0; k < BUFFERS; k++) {
        Py_buffer old = f->buffer[k];
        f->buffer[k] = views[k];
        PyBuffer_Release(&old);
    }
    self->room = 0; /* until `set_rows` has compared the sizes */
    Py_RETURN_NONE;
}

/* set_rows(rows, room): the number of samples that the buffers hold, and for how many they have room. */
static PyObject *set_rows(collector *self, PyObject *args) {
    Py_ssize_t rows, room;
    if (!PyArg_ParseTuple(args, "nn:set_rows", &rows, &room)) return NULL;
    if (rows < 0 || room < rows) return PyErr_Format(PyExc_ValueError, "expected at most %zd rows, got %zd", room, rows);
    self->room = 0;
    for (Py_ssize_t k = 0; k < self->count; k++) {
        const field *f = &self->fields[k];
        if (f->kind == CALL) continue;
        int fits = !f->optional || f->buffer[VALID].len >= room;
        if (varies(f)) {
            const int64_t *offsets = f->buffer[OFFSETS].buf;
            fits = fits && f->buffer[OFFSETS].len / 8 > room && (uintptr_t)offsets % 8 == 0;
            fits = fits && offsets[0] == 0 && offsets[rows] >= 0 && offsets[rows] <= f->buffer[DATA].len / f->item;
        } else {
            fits = fits && (!f->width || f->buffer[DATA].len / f->width >= room);
        }
        if (!fits) return PyErr_Format(PyExc_ValueError, "expected buffers for %zd rows in field %zd", room, k);
    }
    self->rows = rows;
    self->room = room;
    Py_RETURN_NONE;
}

static PyObject *keep_rows(collector *self, PyObject *args) {
    Py_ssize_t rows;
    if (!PyArg_ParseTuple(args, "n:truncate", &rows)) return NULL;
    if (rows >= 0 && rows < self->rows) self->rows = rows;
    Py_RETURN_NONE;
}

static PyObject *state(collector *self, PyObject *unused) {
    return Py_BuildValue("nnn", self->rows, size_of(self), self->needed);
}

/* ---- the object --------------------------------------------------------------------------------------------- */

static int read_field(collector *self, field *f, PyObject *plan) {
    PyObject *name, *detail, *types, *shape;
    if (!PyTuple_Check(plan) ||
        !PyArg_ParseTuple(plan, "UiOO!nnO!LLp:field", &name, &f->kind, &detail, &PyTuple_Type, &types, &f->item, &f->width,
                          &PyTuple_Type, &shape, &f->low, &f->high, &f->optional)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "expected a tuple for each field");
        return 0;
    }
    Py_ssize_t sizes = PyTuple_Size(shape);
    int number = f->kind == INTEGER || f->kind == UNSIGNED || f->kind == FLOAT || f->kind == BOOL;
    int wide = f->width == 8 || (f->kind == INTEGER && (f->width == 1 || f->width == 2 || f->width == 4)) ||
               (f->kind == FLOAT && f->width == 4) || (f->kind == BOOL && f->width == 1);
    int text = f->kind == TEXT || f->kind == BYTES || f->kind == ENCODED;
    if (f->kind < 0 || f->kind >= KINDS || sizes > MOST_SIZES || f->item < 1 || f->width < 0 || (number && !wide) || (text && f->item != 1)) {
        PyErr_SetString(PyExc_ValueError, "expected a known kind of field");
        return 0;
    }
    Py_ssize_t width = f->item;
    for (Py_ssize_t k = 0; k < sizes; k++) {
        f->shape[k] = PyLong_AsSsize_t(PyTuple_GetItem(shape, k));
        if (f->shape[k] == -1 && PyErr_Occurred()) return 0;
        if (f->shape[k] < 0 || (f->shape[k] && width > PY_SSIZE_T_MAX / f->shape[k])) {
            PyErr_SetString(PyExc_ValueError, "expected sizes of 0 or more");
            return 0;
        }
        if (k || f->kind == FIXED) width *= f->shape[k];
    }
    if ((f->kind == FIXED || f->kind == RAGGED) && (f->width != width || (f->kind == RAGGED && !sizes))) {
        PyErr_SetString(PyExc_ValueError, "expected the size of the array");
        return 0;
    }
    f->sizes = (int)sizes;
    Py_INCREF(name);
    Py_INCREF(detail);
    Py_INCREF(types);
    f->name = name;
    f->detail = detail;
    f->types = types;
    return 1;
}

static void clear(collector *self) {
    for (Py_ssize_t k = 0; self->fields && k < self->count; k++) {
        field *f = &self->fields[k];
        Py_CLEAR(f->name);
        Py_CLEAR(f->detail);
        Py_CLEAR(f->types);
        for (int b = 0; b < BUFFERS; b++) PyBuffer_Release(&f->buffer[b]);
    }
    PyMem_Free(self->fields);
    self->fields = NULL;
    Py_CLEAR(self->array);
}

static void collector_free(collector *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    clear(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* Collector(plan, array_type): plan has (name, kind, detail, types, item, width, shape, low, high, optional) per field. */
static PyObject *collector_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *plan, *array;
    if (!PyArg_ParseTuple(args, "O!O:Collector", &PyList_Type, &plan, &array)) return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    collector *self = (collector *)allocate(type, 0);
    if (!self) return NULL;
    self->count = PyList_Size(plan);
    Py_INCREF(array);
    self->array = array;
    self->fields = PyMem_Calloc((size_t)self->count + 1, sizeof(field));
    if (!self->fields) PyErr_NoMemory();
    int fine = self->fields != NULL;
    for (Py_ssize_t k = 0; fine && k < self->count; k++) fine = read_field(self, &self->fields[k], PyList_GetItem(plan, k));
    if (fine) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static PyMethodDef collector_methods[] = {
    {"append", (PyCFunction)append, METH_O, "Append one sample, a dict."},
    {"resume", (PyCFunction)resume, METH_VARARGS, "Store the rest of a sample."},
    {"commit", (PyCFunction)commit, METH_O, "Count the sample that was stored."},
    {"extend", (PyCFunction)extend, METH_VARARGS, "Append samples of an iterator."},
    {"set_buffers", (PyCFunction)set_buffers, METH_VARARGS, "Replace the buffers of a field."},
    {"set_rows", (PyCFunction)set_rows, METH_VARARGS, "Set the number of rows and the room for them."},
    {"truncate", (PyCFunction)keep_rows, METH_VARARGS, "Forget all rows after the first ones."},
    {"state", (PyCFunction)state, METH_NOARGS, "Return rows, their size, and the bytes that a full field needs, or the field of an error."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {{Py_tp_new, collector_new},
                              {Py_tp_dealloc, collector_free},
                              {Py_tp_methods, collector_methods},
                              {Py_tp_doc, "Collects the values of samples; see collect.py."},
                              {0, NULL}};

static PyType_Spec spec = {"shardex.kernel._collect.Collector", sizeof(collector), 0, Py_TPFLAGS_DEFAULT, slots};

static int execute(PyObject *module) {
    static const char *names[] = {"FIXED", "RAGGED", "INTEGER", "UNSIGNED", "FLOAT", "BOOL", "TEXT", "BYTES", "ENCODED", "CALL"};
    for (int k = 0; k < KINDS; k++)
        if (PyModule_AddIntConstant(module, names[k], k)) return -1;
    if (!dtype_name && !(dtype_name = PyUnicode_InternFromString("dtype"))) return -1;
    PyObject *type = PyType_FromSpec(&spec);
    if (!type) return -1;
    int failed = PyModule_AddObjectRef(module, "Collector", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_collect", "Collects samples; see collect.py.", 0, NULL, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__collect(void) { return PyModuleDef_Init(&module); }
