/* The gather kernel: copy many ranges of many mapped buffers into one.
 *
 * A table of segments is two arrays, the address and the size of each buffer; an address of zero means
 * "not opened yet". Every function first checks all of its ranges against that table and only then copies,
 * so a wrong range raises and nothing is copied. When a range lies in a segment that is not open, the
 * function returns the number of that segment, and the caller opens it and calls again; -1 means done.
 * An error caused by one segment carries its number as a second argument; `buffers.py` adds the name.
 * That module also owns the tables and keeps the buffers alive. `numpy_kernel.py` has the same functions in numpy.
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

enum { MAX_THREADS = 8 };
enum { AHEAD = 8, FETCHED = 2048 }; /* a range so many further on is fetched into the cache, so many bytes of it at most */
#if defined(__GLIBC__) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDER __attribute__((target_clones("avx2", "default"))) /* stores of 32 bytes where the processor has them: 1.5x as fast */
#else
#define WIDER
#endif
static const int64_t THREAD_BYTES = 256 << 10; /* waking up a thread takes as long as copying so much */
static const int64_t PART_BYTES = 64 << 10;    /* what a thread takes at once */
static const int64_t SPIN_NANOSECONDS = 250000; /* a thread that was needed again so soon stays awake so long for the next call */
static const int64_t END_NANOSECONDS = 20000;  /* and a call so long for the last part of another thread */
static const int64_t SHARED_NANOSECONDS = 10000; /* after offering the processor for so long, a thread knows that others need it */
static const int SHARED_CALLS = 64;            /* and does not stay awake for so many calls */
static const int64_t ADVISE_BYTES = 64 << 10;  /* starting a read from a disk takes as long as copying so much */
static const int64_t PERMUTE_BYTES = 16;       /* permuting a number takes at least as long as copying so much */

typedef enum { FINE, CLOSED, OUTSIDE, SHORT, BROKEN, OVERFLOWS } verdict;

typedef struct {
    const uint64_t *address, *size;
    int64_t segments;
} table;

#include "_checksum.c" /* shardex_xxh3, PREFETCH */

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

/* ---- threads that stand ready --------------------------------------------------------------------------- */

/* Calls `part` for consecutive parts of 0 to n, in this thread and in others if there are `bytes` enough to gain from it.
 * The others are started when they are first needed and wait for the next call. They serve one call at a time: a second
 * one, from another thread, does not wait for them and works alone. Parts are taken one by one, so a thread that wakes
 * up late costs nothing. The threads never run Python, end with the process, and a forked process starts its own. */
typedef void (*part_function)(const void *what, int64_t from, int64_t to);

#ifdef HAVE_THREADS
static struct {
    pthread_mutex_t owner, lock;   /* `owner` is held during a call; `lock` guards what follows */
    pthread_cond_t wake, done;
    part_function part;
    const void *what;
    int64_t next, n, step;         /* the first item that is not taken; how many there are; how many are taken at once */
    int seats, working, started;   /* how many threads may join; how many have; how many exist */
    pthread_t threads[MAX_THREADS];
    int processors[MAX_THREADS];   /* where each was when it woke up last */
} pool = {.owner = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

/* Sets a number that other threads read without the lock. */
static void set(int *number, int value) {
    __atomic_store_n(number, value, __ATOMIC_RELEASE);
}

/* Does one part; 0 if all are taken. */
static int take_part(void) {
    int64_t from = __atomic_fetch_add(&pool.next, pool.step, __ATOMIC_RELAXED);
    if (from >= pool.n) return 0;
    pool.part(pool.what, from, pool.n - from < pool.step ? pool.n : from + pool.step);
    return 1;
}

static int this_processor(void) {
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void rest(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
    __asm__ volatile("yield");
#endif
}

/* Waits without sleep until a number is zero, or is not (`want`), but no longer than until a time. Waking up a thread that
 * sleeps takes 5 to 50 us, on a virtual machine more than on others. */
static void spin(const int *number, int want, int64_t until) {
    do {
        for (int k = 0; k < 16; k++, rest())
            if (!__atomic_load_n(number, __ATOMIC_ACQUIRE) == !want) return;
    } while (nanoseconds() < until);
}

/* Returns whether another thread ran on this processor when it was offered to others. */
static int is_shared(void) {
    int64_t begin = nanoseconds();
    sched_yield();
    return nanoseconds() - begin > SHARED_NANOSECONDS;
}

static void *stand_ready(void *processor) {
    int64_t idle_since = 0, until = 0;
    int asleep = 0; /* calls for which the thread does not stay awake, because others need the processor */
    for (;;) {
        if (until) spin(&pool.seats, 1, until);
        pthread_mutex_lock(&pool.lock);
        while (!pool.seats) pthread_cond_wait(&pool.wake, &pool.lock);
        *(int *)processor = this_processor();
        set(&pool.seats, pool.seats - 1), set(&pool.working, pool.working + 1);
        pthread_mutex_unlock(&pool.lock);
        int was_soon = nanoseconds() - idle_since < SPIN_NANOSECONDS;
        while (take_part()) {}
        pthread_mutex_lock(&pool.lock);
        set(&pool.working, pool.working - 1);
        if (!pool.working) pthread_cond_signal(&pool.done);
        pthread_mutex_unlock(&pool.lock);
        if (asleep) asleep--;
        else if (was_soon && is_shared()) asleep = SHARED_CALLS;
        idle_since = nanoseconds();
        until = was_soon && !asleep ? idle_since + SPIN_NANOSECONDS : 0;
    }
    return NULL;
}

static void start_threads(int wanted) {
    sigset_t all, before;
    pthread_attr_t small;
    pthread_t id;
    if (pool.started >= wanted || pthread_attr_init(&small)) return;
    sigfillset(&all); /* signals are for the threads of Python */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_setstacksize(&small, 256 << 10);
    pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    while (pool.started < wanted && pthread_create(&id, &small, stand_ready, &pool.processors[pool.started]) == 0) {
        pool.processors[pool.started] = -1;
        pool.threads[pool.started++] = id;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&small);
}

/* Moves threads away from the processor of the caller. The system may wake up a thread there that has slept elsewhere,
 * and then it waits until the caller has done all the work: on two processors, always after a pause of half a second. A
 * thread may not return to that processor until it is moved again: if it could, the system would wake it up there. */
static void move_threads(void) {
#ifdef __linux__
    int here = this_processor();
    cpu_set_t others;
    for (int k = 0; k < pool.started; k++) {
        if (pool.processors[k] != here || here < 0 || here >= CPU_SETSIZE) continue;
        if (pthread_getaffinity_np(pthread_self(), sizeof others, &others) || CPU_COUNT(&others) < 2) return;
        CPU_CLR(here, &others);
        pthread_setaffinity_np(pool.threads[k], sizeof others, &others);
        pool.processors[k] = -1;
    }
#endif
}

static void after_fork(void) { /* the threads of the parent do not exist here, and one may have held a lock */
    pthread_mutex_init(&pool.owner, NULL), pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL), pthread_cond_init(&pool.done, NULL);
    pool.seats = pool.working = pool.started = 0;
}
#endif

/* Lets other threads begin with the parts; returns how many items a part has, 0 if all the work is left to the caller. */
static int64_t begin_parts(part_function part, const void *what, int64_t n, int64_t bytes, int threads) {
#ifdef HAVE_THREADS
    int64_t most = bytes / THREAD_BYTES;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (threads > most) threads = (int)most;
    if (threads > 1 && n > 1 && pthread_mutex_trylock(&pool.owner) == 0) {
        pthread_mutex_lock(&pool.lock);
        start_threads(threads - 1);
        move_threads();
        pool.part = part, pool.what = what, pool.n = n, pool.next = 0;
        pool.step = bytes / n >= PART_BYTES ? 1 : PART_BYTES / (bytes / n + 1) + 1;
        set(&pool.seats, threads - 1 < pool.started ? threads - 1 : pool.started);
        for (int k = 0; k < pool.seats; k++) pthread_cond_signal(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
        return pool.step;
    }
#else
    (void)part, (void)what, (void)n, (void)threads, (void)bytes;
#endif
    return 0;
}

/* Waits until the parts that `begin_parts` began are done. */
static void end_parts(void) {
#ifdef HAVE_THREADS
    while (take_part()) {}
    pthread_mutex_lock(&pool.lock);
    set(&pool.seats, 0);
    int others = pool.working;
    pthread_mutex_unlock(&pool.lock);
    if (others) spin(&pool.working, 0, nanoseconds() + END_NANOSECONDS);
    pthread_mutex_lock(&pool.lock);
    while (pool.working) pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&pool.owner);
#endif
}

static void in_parts(part_function part, const void *what, int64_t n, int64_t bytes, int threads) {
    if (begin_parts(part, what, n, bytes, threads)) end_parts();
    else part(what, 0, n);
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

/* ---- ranges(address, size, which, begin, length, out, stride, threads) and values(..., text) --------- */

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

#include "_json_lines.c" /* json */

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

/* ---- permute(size, multiply, add, shift, mask, positions, out, inverse, threads) --------------------- */

/* Whether every round is a permutation with a one-step inverse, so that repeating rounds ends below size. */
static int keys_fit(uint64_t size, const uint64_t *multiply, int64_t rounds, int shift, uint64_t mask) {
    if (shift < 1 || shift > 63 || mask >> shift >> shift || mask & (mask + 1) || (size && mask < size - 1)) return 0;
    for (int64_t r = 0; r < rounds; r++)
        if (multiply[r] % 2 == 0) return 0;
    return 1;
}

typedef struct {
    const uint64_t *position, *multiply, *add;
    uint64_t *out, size, mask;
    int64_t rounds;
    int shift, inverse;
} permutation;

enum { AT_ONCE = 1024 }; /* numbers that go through a round together: the processor computes several at the same time */

/* All rounds for some numbers. For the inverse `multiply` holds the inverses, in the same order. */
#define DEFINE_ROUNDS(NAME, NUMBER)                                                                             \
    WIDER static void NAME(const permutation *j, NUMBER *x, int64_t n) {                                        \
        NUMBER mask = (NUMBER)j->mask;                                                                          \
        int shift = j->shift;                                                                                   \
        for (int64_t r = 0; r < j->rounds; r++) {                                                               \
            int64_t round = j->inverse ? j->rounds - 1 - r : r;                                                 \
            NUMBER multiply = (NUMBER)j->multiply[round], add = (NUMBER)j->add[round];                          \
            if (j->inverse)                                                                                     \
                for (int64_t k = 0; k < n; k++) x[k] = (((x[k] ^ x[k] >> shift) - add) * multiply) & mask;      \
            else                                                                                                \
                for (int64_t k = 0; k < n; k++) x[k] = (x[k] * multiply + add) & mask, x[k] ^= x[k] >> shift;   \
        }                                                                                                       \
    }

/* The numbers at `from` to `to`; those that are not below the size go through the rounds again. */
#define DEFINE_PERMUTE(NAME, ROUNDS, NUMBER)                                                                    \
    static void NAME(const void *what, int64_t from, int64_t to) {                                              \
        const permutation *j = what;                                                                            \
        NUMBER x[AT_ONCE];                                                                                      \
        int64_t place[AT_ONCE];                                                                                 \
        for (int64_t left; from < to; from += left) {                                                           \
            left = to - from < AT_ONCE ? to - from : AT_ONCE;                                                   \
            for (int64_t k = 0; k < left; k++) x[k] = (NUMBER)j->position[from + k], place[k] = from + k;       \
            for (int64_t n = left, again; n; n = again) {                                                       \
                ROUNDS(j, x, n);                                                                                \
                again = 0;                                                                                      \
                for (int64_t k = 0; k < n; k++) {                                                               \
                    NUMBER found = x[k];                                                                        \
                    int64_t where = place[k];                                                                   \
                    j->out[where] = found;                                                                      \
                    x[again] = found, place[again] = where; /* no branch: it would be guessed wrong */          \
                    again += found >= j->size;                                                                  \
                }                                                                                               \
            }                                                                                                   \
        }                                                                                                       \
    }

DEFINE_ROUNDS(narrow_rounds, uint32_t)
DEFINE_ROUNDS(wide_rounds, uint64_t)
DEFINE_PERMUTE(permute_narrow, narrow_rounds, uint32_t)
DEFINE_PERMUTE(permute_wide, wide_rounds, uint64_t)

static PyObject *permute(PyObject *self, PyObject *args) {
    Py_buffer multiply, add, position, out;
    unsigned long long size, mask;
    int shift, inverse, threads;
    if (!PyArg_ParseTuple(args, "Ky*y*iKy*w*pi:permute", &size, &multiply, &add, &shift, &mask, &position, &out, &inverse, &threads)) return NULL;
    PyObject *result = NULL;
    int64_t n, rounds, adds, outs;
    if (!length_of(&position, 8, "positions", &n) || !length_of(&multiply, 8, "multiply", &rounds) ||
        !length_of(&add, 8, "add", &adds) || !length_of(&out, 8, "out", &outs))
        goto end;
    if (rounds != adds || outs != n || !keys_fit(size, multiply.buf, rounds, shift, mask)) {
        PyErr_SetString(PyExc_ValueError, "permute: expected odd multipliers, as many adds, an output as long as positions, a mask "
                                          "of ones that covers the size, and a shift by half its bits or more");
        goto end;
    }
    permutation j = {position.buf, multiply.buf, add.buf, out.buf, size, mask, rounds, shift, inverse};
    int64_t bad = -1;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t k = 0; k < n && bad < 0; k++)
        if (j.position[k] >= size) bad = k;
    int narrow = mask <= UINT32_MAX && shift < 32;
    if (bad < 0) in_parts(narrow ? permute_narrow : permute_wide, &j, n, n * PERMUTE_BYTES, threads);
    Py_END_ALLOW_THREADS
    result = answer(bad < 0 ? FINE : OUTSIDE, bad, 0);
end:
    PyBuffer_Release(&multiply), PyBuffer_Release(&add), PyBuffer_Release(&position), PyBuffer_Release(&out);
    return result;
}

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
