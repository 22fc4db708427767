/* Writes buffers to a file in a thread of its own, which never needs the GIL: a thread of Python would wait for it up to
 * 5 ms after each write, while another one runs Python code. The thread also computes the checksums of what it writes.
 *
 * The buffers of a call are held until they are written: when they reach the next multiple of 1 MiB in the file, or with
 * `drain` and `close`. At most `most` bytes wait: a call that adds more returns when fewer do. After an error nothing else
 * is written, and every later call raises it. A child process after a fork has no thread and can only forget the object.
 * `checksums` may not be called while another thread writes.
 *
 * There is a checksum for each block of `block` bytes at a multiple of it in the file, and for each part of one that a
 * call begins or ends with. The file must be empty before the first call.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "_checksum.c" /* shardex_xxh3 */

/* Bytes are written up to the next multiple of this, which lets Linux keep them in few large pages: mapping those takes half the
 * time. It could map pieces of 2 MiB even faster. But a virtual machine that gives free memory back to its host gives it back in
 * such pieces, and taking them again was seen to make writes eight times as slow. */
static const size_t AT_ONCE = 1 << 20;
enum { PIECES = 256 }; /* at most, in one call of the system */
static const size_t LARGEST_BLOCK = 1 << 20;

typedef struct part {
    Py_buffer view;
    struct part *next;
    int last; /* of its call */
} part;

typedef struct {
    PyObject_HEAD
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    part *waiting, *last; /* to be written, none of them empty */
    size_t begun;         /* bytes of the first one that are written */
    part *written;        /* to be released by a thread that has the GIL */
    int64_t pending, most, sync_every, unsynced;
    uint32_t *sums;
    size_t count, room; /* of the checksums */
    char *held;         /* the begin of a block that several buffers have parts of */
    size_t held_size, block, position;
    pid_t process;
    int file, error, ready, running, stopping; /* ready: the lock exists */
    int draining;                              /* calls that wait for bytes which reach no multiple of 1 MiB */
} writer;

/* ---- the thread --------------------------------------------------------------------------------------------- */

static int add_sum(writer *self, const char *data, size_t size) {
    if (self->count == self->room) {
        size_t room = self->room ? 2 * self->room : 1024;
        uint32_t *sums = realloc(self->sums, room * sizeof(uint32_t));
        if (!sums) return ENOMEM;
        self->sums = sums;
        self->room = room;
    }
    self->sums[self->count++] = (uint32_t)shardex_xxh3((const uint8_t *)data, size, (const uint8_t *)data + size);
    return 0;
}

static int sum_held(writer *self) {
    size_t size = self->held_size;
    self->held_size = 0;
    return size ? add_sum(self, self->held, size) : 0;
}

static int sum_blocks(writer *self, const char *data, size_t size) {
    while (size) {
        size_t missing = self->block - self->position % self->block;
        size_t count = size < missing ? size : missing;
        if (count < missing || self->held_size) {
            memcpy(self->held + self->held_size, data, count);
            self->held_size += count;
            if (count == missing && sum_held(self)) return ENOMEM;
        } else if (add_sum(self, data, count)) return ENOMEM;
        self->position += count;
        data += count;
        size -= count;
    }
    return 0;
}

/* The begin of what waits, `most` bytes of it at most. */
typedef struct {
    struct iovec pieces[PIECES];
    int ends_call[PIECES];
    int count;
    size_t size;
} piece_list;

static void take(const writer *self, size_t most, piece_list *taken) {
    size_t at = self->begun;
    taken->count = 0;
    taken->size = 0;
    for (const part *one = self->waiting; one && taken->size < most && taken->count < PIECES; one = one->next, at = 0) {
        size_t rest = (size_t)one->view.len - at, size = rest < most - taken->size ? rest : most - taken->size;
        taken->pieces[taken->count] = (struct iovec){(char *)one->view.buf + at, size};
        taken->ends_call[taken->count++] = size == rest && one->last;
        taken->size += size;
    }
}

static int sum_pieces(writer *self, const piece_list *taken) {
    for (int k = 0; k < taken->count; k++) {
        if (sum_blocks(self, taken->pieces[k].iov_base, taken->pieces[k].iov_len)) return ENOMEM;
        if (taken->ends_call[k] && sum_held(self)) return ENOMEM;
    }
    return 0;
}

static int write_pieces(writer *self, piece_list *taken) {
    struct iovec *pieces = taken->pieces;
    for (int count = taken->count; count;) {
        ssize_t done = writev(self->file, pieces, count);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return done ? errno : EIO;
        self->unsynced += done;
        for (; count && (size_t)done >= pieces->iov_len; pieces++, count--) done -= (ssize_t)pieces->iov_len;
        if (count) {
            pieces->iov_base = (char *)pieces->iov_base + done;
            pieces->iov_len -= (size_t)done;
        }
    }
    if (self->sync_every && self->unsynced >= self->sync_every) {
#ifdef SYNC_FILE_RANGE_WRITE
        sync_file_range(self->file, 0, 0, SYNC_FILE_RANGE_WRITE); /* so that the final sync waits less */
#endif
        self->unsynced = 0;
    }
    return 0;
}

/* Removes the first `size` waiting bytes, and the parts that end there. */
static void give_back(writer *self, size_t size) {
    self->pending -= (int64_t)size;
    self->begun += size;
    for (part *one; (one = self->waiting) && self->begun >= (size_t)one->view.len;) {
        self->begun -= (size_t)one->view.len;
        if (!(self->waiting = one->next)) self->last = NULL;
        one->next = self->written;
        self->written = one;
    }
    pthread_cond_broadcast(&self->changed);
}

static void *run(void *argument) {
    writer *self = argument;
    piece_list taken;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        size_t size = AT_ONCE - self->position % AT_ONCE;
        while (self->pending < (int64_t)size && !self->stopping && !(self->waiting && (self->draining || self->error)))
            pthread_cond_wait(&self->changed, &self->lock);
        if (!self->waiting) break;
        if (self->error) {
            give_back(self, (size_t)self->pending);
            continue;
        }
        take(self, size, &taken);
        pthread_mutex_unlock(&self->lock);
        int error = sum_pieces(self, &taken);
        if (!error) error = write_pieces(self, &taken);
        pthread_mutex_lock(&self->lock);
        self->error = error;
        give_back(self, taken.size);
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

static int start(writer *self) {
    if (self->running) return 1;
    sigset_t all, before; /* signals are for the threads of Python, but for errors of this one, which faulthandler reports */
    static const int errors[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    sigfillset(&all);
    for (int k = 0; k < 4; k++) sigdelset(&all, errors[k]);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    self->running = pthread_create(&self->thread, NULL, run, self) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return self->running;
}

/* ---- methods ------------------------------------------------------------------------------------------------ */

static int is_usable(const writer *self) {
    if (self->process == getpid() && !self->stopping) return 1;
    PyErr_SetString(PyExc_ValueError, self->stopping ? "expected an open file, got a closed one" : "expected the process that opened the file");
    return 0;
}

static void release_parts(part *one) {
    while (one) {
        part *next = one->next;
        PyBuffer_Release(&one->view);
        PyMem_Free(one);
        one = next;
    }
}

/* Wait until at most `most` bytes are pending, release the written buffers, and raise the error of the thread. */
static int settle(writer *self, int64_t most) {
    part *done;
    int error, drains = most < (int64_t)AT_ONCE;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&self->lock);
    self->draining += drains;
    if (drains) pthread_cond_broadcast(&self->changed);
    while (self->pending > most) pthread_cond_wait(&self->changed, &self->lock);
    self->draining -= drains;
    done = self->written;
    self->written = NULL;
    error = self->error;
    pthread_mutex_unlock(&self->lock);
    Py_END_ALLOW_THREADS
    release_parts(done);
    if (error) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    return !error;
}

/* Returns the buffers of a list that are not empty; NULL with an error, or if there are none. */
static part *parts_of(PyObject *list, part **last, int64_t *size) {
    part *first = NULL;
    *last = NULL;
    *size = 0;
    for (Py_ssize_t k = 0; k < PyList_Size(list); k++) {
        part *one = PyMem_Calloc(1, sizeof(part));
        if (!one || PyObject_GetBuffer(PyList_GetItem(list, k), &one->view, PyBUF_SIMPLE)) {
            if (!one) PyErr_NoMemory();
            PyMem_Free(one);
            release_parts(first);
            return NULL;
        }
        if (!one->view.len) {
            release_parts(one);
            continue;
        }
        if (*last) (*last)->next = one;
        else first = one;
        *last = one;
        *size += one->view.len;
    }
    if (*last) (*last)->last = 1;
    return first;
}

static PyObject *write_parts(writer *self, PyObject *list) {
    if (!is_usable(self)) return NULL;
    if (!PyList_Check(list)) return PyErr_Format(PyExc_TypeError, "expected a list of buffers");
    part *last;
    int64_t size;
    part *first = parts_of(list, &last, &size);
    if (!first && PyErr_Occurred()) return NULL;
    if (first) {
        pthread_mutex_lock(&self->lock);
        if (self->stopping) { /* another thread has closed it meanwhile */
            pthread_mutex_unlock(&self->lock);
            release_parts(first);
            is_usable(self);
            return NULL;
        }
        if (self->last) self->last->next = first;
        else self->waiting = first;
        self->last = last;
        self->pending += size;
        pthread_cond_broadcast(&self->changed);
        pthread_mutex_unlock(&self->lock);
    }
    if (!settle(self, self->most)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *drain(writer *self, PyObject *unused) {
    if (!is_usable(self) || !settle(self, 0)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *checksums(writer *self, PyObject *unused) {
    if (!is_usable(self) || !settle(self, 0)) return NULL;
    return PyBytes_FromStringAndSize((const char *)self->sums, (Py_ssize_t)(self->count * sizeof(uint32_t)));
}

/* End the thread; what waits is written before, and errors are not raised. */
static PyObject *close_writer(writer *self, PyObject *unused) {
    if (self->process != getpid() || !self->running) {
        self->stopping = 1;
        Py_RETURN_NONE;
    }
    self->running = 0; /* with the GIL: only one call joins the thread */
    pthread_mutex_lock(&self->lock);
    self->stopping = 1;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
    Py_BEGIN_ALLOW_THREADS
    pthread_join(self->thread, NULL);
    Py_END_ALLOW_THREADS
    if (!settle(self, 0)) PyErr_Clear();
    Py_RETURN_NONE;
}

static void writer_free(writer *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject *error, *value, *trace; /* of the code that gives up the writer */
    PyErr_Fetch(&error, &value, &trace);
    if (self->process == getpid() && self->ready) {
        PyObject *nothing = close_writer(self, NULL);
        Py_XDECREF(nothing);
        pthread_cond_destroy(&self->changed);
        pthread_mutex_destroy(&self->lock);
        free(self->sums);
        free(self->held);
    } /* else the buffers and checksums stay: the thread may have held a lock, or moved them, when the process was forked */
    if (self->file >= 0) close(self->file);
    PyErr_Restore(error, value, trace);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* FileWriter(file, most, sync_every, block). It has a descriptor of its own: the caller may close that of the file at any time, and
 * its number may then belong to another file. */
static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    int file;
    long long most, sync_every, block;
    if (!PyArg_ParseTuple(args, "iLLL:FileWriter", &file, &most, &sync_every, &block)) return NULL;
    if (file < 0 || most < 0 || sync_every < 0) return PyErr_Format(PyExc_ValueError, "expected a file and sizes of 0 or more");
    if (block < 1 || (size_t)block > LARGEST_BLOCK) return PyErr_Format(PyExc_ValueError, "expected blocks of 1 byte to 1 MiB");
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    writer *self = (writer *)allocate(type, 0);
    if (!self) return NULL;
    self->file = -1;
    self->process = getpid();
    if (pthread_mutex_init(&self->lock, NULL) || pthread_cond_init(&self->changed, NULL)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->ready = 1;
    self->block = (size_t)block;
    if (!(self->held = malloc(self->block))) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    if ((self->file = fcntl(file, F_DUPFD_CLOEXEC, 0)) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    self->most = most;
    self->sync_every = sync_every;
    if (start(self)) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_Format(PyExc_RuntimeError, "expected to start a thread, the system has no room for one");
}

static PyMethodDef writer_methods[] = {
    {"write", (PyCFunction)write_parts, METH_O, "Write a list of buffers, which must not change before drain."},
    {"drain", (PyCFunction)drain, METH_NOARGS, "Wait until everything is written."},
    {"checksums", (PyCFunction)checksums, METH_NOARGS, "Wait until everything is written; return the checksums of its blocks, 4 bytes each."},
    {"close", (PyCFunction)close_writer, METH_NOARGS, "End the thread."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {{Py_tp_new, writer_new},
                              {Py_tp_dealloc, writer_free},
                              {Py_tp_methods, writer_methods},
                              {Py_tp_doc, "Writes buffers to a file in a thread; see kernel/write_behind.py."},
                              {0, NULL}};

static PyType_Spec spec = {"shardex.kernel._write_behind.FileWriter", sizeof(writer), 0, Py_TPFLAGS_DEFAULT, slots};

static int execute(PyObject *module) {
    PyObject *type = PyType_FromSpec(&spec);
    if (!type) return -1;
    int failed = PyModule_AddObjectRef(module, "FileWriter", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_write_behind", "Writes in a thread; see write_behind.py.", 0, NULL, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__write_behind(void) { return PyModuleDef_Init(&module); }
