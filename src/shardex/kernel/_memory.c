/* Memory of large arrays that is reused; included by `_gather.c`. */

/* ---- memory(size): memory of a large array, which the next one reuses -------------------------------------- */

/* The object exports its memory as a buffer; when it is gone, the memory is kept for a later one. `array_pool.py` says why. */
enum { MOST_PIECES = 8, PIECE_HEAD = 64 };
static const uint64_t MOST_FREE = 256 << 20; /* bytes of all free pieces */

typedef struct {
    uint64_t room;
    char head[PIECE_HEAD - sizeof(uint64_t)]; /* what follows is aligned to a cache line if the piece is */
} piece;

static struct {
    piece *pieces[MOST_PIECES]; /* the last one was put here last: the cache of the processor may still have it */
    int count;
    uint64_t bytes;
} unused;

#if defined(Py_GIL_DISABLED)
static char unused_lock;
static void lock_unused(void) {
    while (__atomic_test_and_set(&unused_lock, __ATOMIC_ACQUIRE)) {}
}
static void unlock_unused(void) { __atomic_clear(&unused_lock, __ATOMIC_RELEASE); }
#else /* the functions below run with the GIL */
static void lock_unused(void) {}
static void unlock_unused(void) {}
#endif

static piece *remove_piece(int k) {
    piece *p = unused.pieces[k];
    unused.bytes -= p->room, unused.count--;
    for (; k < unused.count; k++) unused.pieces[k] = unused.pieces[k + 1];
    return p;
}

static piece *new_piece(uint64_t size) {
    piece *p = NULL;
    lock_unused();
    for (int k = unused.count; k-- > 0 && !p;)
        if (size <= unused.pieces[k]->room && unused.pieces[k]->room / 4 <= size) p = remove_piece(k);
    unlock_unused();
    if (p) return p;
    uint64_t room = 1;
    while (room < size) room *= 2;
#ifdef _WIN32
    p = malloc((size_t)(room + PIECE_HEAD));
#else
    void *found;
    p = posix_memalign(&found, PIECE_HEAD, (size_t)(room + PIECE_HEAD)) ? NULL : found;
#endif
    if (p) p->room = room;
    return p;
}

static void keep_piece(piece *p) {
    piece *old[MOST_PIECES + 1];
    int dropped = 0;
    lock_unused();
    while (unused.count && (unused.count == MOST_PIECES || unused.bytes + p->room > MOST_FREE)) old[dropped++] = remove_piece(0);
    if (p->room > MOST_FREE) old[dropped++] = p;
    else unused.pieces[unused.count++] = p, unused.bytes += p->room;
    unlock_unused();
    while (dropped) free(old[--dropped]);
}

typedef struct {
    PyObject_HEAD
    piece *piece;
    Py_ssize_t size;
} memory;

static PyObject *memory_type;

static int export_memory(PyObject *self, Py_buffer *view, int flags) {
    memory *m = (memory *)self;
    return PyBuffer_FillInfo(view, self, (char *)m->piece + PIECE_HEAD, m->size, 0, flags);
}

static void free_memory(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    if (((memory *)self)->piece) keep_piece(((memory *)self)->piece);
    release(self);
    Py_DECREF(type);
}

static PyObject *new_memory(PyObject *self, PyObject *number) {
    Py_ssize_t size = PyLong_AsSsize_t(number);
    if (size == -1 && PyErr_Occurred()) return NULL;
    if (size < 0 || size > PY_SSIZE_T_MAX / 4) return PyErr_NoMemory();
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)memory_type, Py_tp_alloc);
    memory *m = (memory *)allocate((PyTypeObject *)memory_type, 0);
    if (!m) return NULL;
    m->size = size;
    if (!(m->piece = new_piece((uint64_t)size))) {
        Py_DECREF(m);
        return PyErr_NoMemory();
    }
    return (PyObject *)m;
}

/* Frees what is kept; returns the sizes of the pieces. */
static PyObject *clear_memory(PyObject *self, PyObject *unused_argument) {
    PyObject *sizes = PyList_New(0);
    while (sizes) {
        lock_unused();
        piece *p = unused.count ? remove_piece(0) : NULL;
        unlock_unused();
        if (!p) break;
        PyObject *size = PyLong_FromUnsignedLongLong(p->room);
        free(p);
        if (!size || PyList_Append(sizes, size) < 0) Py_CLEAR(sizes);
        Py_XDECREF(size);
    }
    return sizes;
}

static PyType_Slot memory_slots[] = {{Py_tp_dealloc, free_memory}, {Py_bf_getbuffer, export_memory}, {0, NULL}};
static PyType_Spec memory_spec = {"shardex.kernel._gather.Memory", sizeof(memory), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, memory_slots};
