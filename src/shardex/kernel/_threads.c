/* Threads that stand ready to do parts of a call; included by `_gather.c`. */

enum { MAX_THREADS = 8 };
static const int64_t THREAD_BYTES = 256 << 10;   /* waking up a thread takes as long as copying so much */
static const int64_t PART_BYTES = 64 << 10;      /* what a thread takes at once */
static const int64_t SPIN_NANOSECONDS = 250000;  /* a thread that was needed again so soon stays awake so long for the next call */
static const int64_t END_NANOSECONDS = 20000;    /* and a call so long for the last part of another thread */
static const int64_t SHARED_NANOSECONDS = 10000; /* if another thread runs for so long when a thread offers its processor, */
static const int SHARED_CALLS = 64;              /* it does not stay awake for so many calls */

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
