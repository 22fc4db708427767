/* Values of some keys of lines that are JSON objects, as columns; included by `_gather.c`, whose tables and threads it uses.
 *
 * Only what is common in lines is read here: numbers with at most 19 digits, texts, truth values and null in the wanted
 * keys, anything in others. A line with anything else, or that is no JSON, is refused, and the caller decodes all lines
 * with a complete decoder. So whatever is accepted has the value that a complete decoder returns.
 */
#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { LONGEST_NUMBER = 19, LONGEST_FRACTION = 1000, DEEPEST = 64, LARGEST_POWER = 27 };
enum { PARSE_COST = 4 };                         /* parsing a byte takes as long as copying so many */
static const uint64_t EXACT = (uint64_t)1 << 53; /* integers up to here are exact as float64 */

typedef enum { NO_KEY, HAS_VALUE, IS_NULL } presence;

typedef struct {
    uint64_t begin; /* an address */
    int64_t length, escaped;
} json_text;

typedef struct {
    const char *name;
    Py_ssize_t length;
    char kind;     /* see `json` */
    void *out;     /* int64_t, double, uint8_t or json_text of each line; NULL: not wanted */
    uint8_t *have; /* presence of each line */
} json_field;

typedef struct {
    const uint8_t *const *source;
    const int64_t *length;
    json_field *fields;
    int64_t count;
    int strict;
    uint8_t *done; /* 1 for the first line of each part that is parsed */
    int *refused;  /* set by any thread; the others then begin no other part */
} json_job;

/* ---- text --------------------------------------------------------------------------------------------------- */

/* A bit for each quote, backslash and control character among 16 bytes. */
#if defined(__SSE2__)
#define HAVE_BLOCKS 1
static inline uint32_t specials(const uint8_t *p) {
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    __m128i quotes = _mm_cmpeq_epi8(v, _mm_set1_epi8('"')), backslashes = _mm_cmpeq_epi8(v, _mm_set1_epi8('\\'));
    __m128i controls = _mm_cmpeq_epi8(_mm_min_epu8(v, _mm_set1_epi8(' ' - 1)), v);
    return (uint32_t)_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quotes, backslashes), controls));
}
#elif defined(__ARM_NEON) && defined(__aarch64__)
#define HAVE_BLOCKS 1
static inline uint32_t specials(const uint8_t *p) {
    static const uint8_t bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t v = vld1q_u8(p), found = vorrq_u8(vorrq_u8(vceqq_u8(v, vdupq_n_u8('"')), vceqq_u8(v, vdupq_n_u8('\\'))), vcltq_u8(v, vdupq_n_u8(' ')));
    found = vandq_u8(found, vld1q_u8(bits));
    return (uint32_t)vaddv_u8(vget_low_u8(found)) | (uint32_t)vaddv_u8(vget_high_u8(found)) << 8;
}
#endif

static int is_special(uint8_t c) { return c == '"' || c == '\\' || c < ' '; }

#ifdef HAVE_VECTORS
__attribute__((target("avx2"))) static inline __m256i specials_32(const uint8_t *p) {
    __m256i v = _mm256_loadu_si256((const __m256i *)p);
    __m256i quotes = _mm256_cmpeq_epi8(v, _mm256_set1_epi8('"')), backslashes = _mm256_cmpeq_epi8(v, _mm256_set1_epi8('\\'));
    __m256i controls = _mm256_cmpeq_epi8(_mm256_min_epu8(v, _mm256_set1_epi8(' ' - 1)), v);
    return _mm256_or_si256(_mm256_or_si256(quotes, backslashes), controls);
}

/* Returns the first piece of 64 bytes with a special character, or where fewer than 64 bytes are left. */
__attribute__((target("avx2"))) static const uint8_t *skip_plain(const uint8_t *p, const uint8_t *end) {
    while (end - p >= 64 && !_mm256_movemask_epi8(_mm256_or_si256(specials_32(p), specials_32(p + 32)))) p += 64;
    return p;
}
#endif

/* The first quote, backslash or control character from p on; `end` if there is none. */
static inline const uint8_t *find_special(const uint8_t *p, const uint8_t *end) {
#ifdef HAVE_BLOCKS
    for (int is_first = 1; end - p >= 32; is_first = 0) {
        uint32_t found = specials(p) | specials(p + 16) << 16;
        if (found) return p + __builtin_ctz(found);
        p += 32;
#ifdef HAVE_VECTORS
        if (is_first && end - p >= 64 && __builtin_cpu_supports("avx2")) p = skip_plain(p, end); /* most texts are short */
#endif
    }
#endif
    while (p < end && !is_special(*p)) p++;
    return p;
}

/* Behind the closing quote of a text that begins at p; NULL if it has none, or a character that JSON does not allow. */
static inline const uint8_t *end_of_text(const uint8_t *p, const uint8_t *end, int *escaped) {
    for (*escaped = 0;; p += 2) {
        p = find_special(p, end);
        if (p == end || *p < ' ') return NULL;
        if (*p == '"') return p + 1;
        if (end - p < 2) return NULL;
        *escaped = 1;
    }
}

/* Four hexadecimal digits; -1 if they are others. */
static int32_t four_digits(const uint8_t *p) {
    int32_t value = 0;
    for (int k = 0; k < 4; k++) {
        uint8_t c = p[k], letter = c | 0x20;
        if (c >= '0' && c <= '9') value = value * 16 + c - '0';
        else if (letter >= 'a' && letter <= 'f') value = value * 16 + letter - 'a' + 10;
        else return -1;
    }
    return value;
}

/* Behind an escape, and the character that it stands for; NULL if it is wrong. There is a character behind its backslash. */
static const uint8_t *read_escape(const uint8_t *p, const uint8_t *end, int32_t *code) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *simple = p[1] ? strchr(from, p[1]) : NULL;
    if (simple) {
        *code = to[simple - from];
        return p + 2;
    }
    *code = p[1] == 'u' && end - p >= 6 ? four_digits(p + 2) : -1;
    if (*code < 0xd800 || *code >= 0xe000) return *code < 0 ? NULL : p + 6;
    p += 6; /* the first of a pair must be followed by the second */
    int32_t second = *code < 0xdc00 && end - p >= 6 && p[0] == '\\' && p[1] == 'u' ? four_digits(p + 2) : -1;
    if (second < 0xdc00 || second >= 0xe000) return NULL;
    *code = 0x10000 + ((*code - 0xd800) << 10) + (second - 0xdc00);
    return p + 6;
}

static uint8_t *put_utf8(uint8_t *out, int32_t code) {
    if (code < 0x80) {
        *out++ = (uint8_t)code;
        return out;
    }
    if (code < 0x800) *out++ = (uint8_t)(0xc0 | code >> 6);
    else {
        if (code < 0x10000) *out++ = (uint8_t)(0xe0 | code >> 12);
        else *out++ = (uint8_t)(0xf0 | code >> 18), *out++ = (uint8_t)(0x80 | (code >> 12 & 0x3f));
        *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3f));
    }
    *out++ = (uint8_t)(0x80 | (code & 0x3f));
    return out;
}

/* Writes a text without its escapes, as UTF-8, which is not longer; its length, or -1 for an escape that is wrong. */
static int64_t without_escapes(const uint8_t *p, const uint8_t *end, uint8_t *out) {
    const uint8_t *first = out;
    for (int32_t code;; out = put_utf8(out, code)) {
        const uint8_t *next = find_special(p, end);
        memcpy(out, p, (size_t)(next - p));
        out += next - p;
        if (next == end) return out - first;
        if (!(p = read_escape(next, end, &code))) return -1;
    }
}

/* Behind a text that is not wanted; NULL if it is no JSON. */
static const uint8_t *skip_text(const uint8_t *p, const uint8_t *end) {
    int escaped;
    int32_t code;
    const uint8_t *behind = end_of_text(p, end, &escaped);
    if (!behind || !escaped) return behind;
    while (p && (p = find_special(p, behind - 1)) < behind - 1) p = read_escape(p, behind - 1, &code);
    return p ? behind : NULL;
}

/* ---- numbers ------------------------------------------------------------------------------------------------ */

typedef struct {
    uint64_t digits; /* the number is digits * 10^exponent */
    int32_t exponent;
    int negative, is_integer, too_long;
} number;

static int is_digit(const uint8_t *p, const uint8_t *end) { return p < end && (uint8_t)(*p - '0') < 10; }

/* Reads digits; leading zeros of the whole number do not count. */
static inline const uint8_t *read_digits(const uint8_t *p, const uint8_t *end, number *n, int *count) {
    for (; is_digit(p, end); p++) {
        n->digits = n->digits * 10 + (uint64_t)(*p - '0');
        *count += *count <= LONGEST_NUMBER && (*count || *p != '0');
    }
    return p;
}

/* Behind a number that begins at p; NULL if there is none. */
static inline const uint8_t *read_number(const uint8_t *p, const uint8_t *end, number *n) {
    int count = 0;
    *n = (number){.negative = *p == '-', .is_integer = 1};
    p += n->negative;
    if (!is_digit(p, end)) return NULL;
    p = *p == '0' ? p + 1 : read_digits(p, end, n, &count);
    if (p < end && *p == '.') {
        const uint8_t *fraction = ++p;
        if (!is_digit(p, end)) return NULL;
        p = read_digits(p, end, n, &count);
        n->is_integer = 0;
        n->too_long = p - fraction > LONGEST_FRACTION;
        n->exponent = n->too_long ? 0 : -(int32_t)(p - fraction);
    }
    if (p < end && (*p | 0x20) == 'e') {
        int32_t exponent = 0;
        int minus = ++p < end && *p == '-';
        p += minus || (p < end && *p == '+');
        if (!is_digit(p, end)) return NULL;
        for (; is_digit(p, end); p++) exponent = exponent < 10000 ? exponent * 10 + *p - '0' : exponent;
        n->is_integer = 0;
        n->exponent += minus ? -exponent : exponent;
    }
    n->too_long |= count > LONGEST_NUMBER; /* `digits` has overflown */
    return p;
}

/* Writes the float64 that is nearest; 0 if that takes more than one division. */
static inline int nearest_double(const number *n, double *out) {
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    double value;
    if (n->too_long) return 0;
    if (!n->digits) value = 0;
    else if (n->digits <= EXACT && n->exponent >= -22 && n->exponent <= 22) /* both are exact, so one rounding is right */
        value = n->exponent < 0 ? (double)n->digits / powers[-n->exponent] : (double)n->digits * powers[n->exponent];
#ifdef __SIZEOF_INT128__
    else if (n->exponent >= -LARGEST_POWER && n->exponent < 0) { /* digits / 5^k / 2^k: 5^k has less than 64 bits */
        uint64_t divisor = 1, bits;
        for (int32_t k = n->exponent; k < 0; k++) divisor *= 5;
        int shift = 64 + __builtin_clzll(n->digits);
        unsigned __int128 dividend = (unsigned __int128)n->digits << shift, quotient = dividend / divisor;
        int rest = quotient * divisor != dividend; /* the quotient has more than 64 bits, of which 53 are kept */
        int dropped = 128 - 53 - __builtin_clzll((uint64_t)(quotient >> 64));
        unsigned __int128 half = (unsigned __int128)1 << (dropped - 1), below = quotient & ((half << 1) - 1);
        uint64_t kept = (uint64_t)(quotient >> dropped);
        kept += below > half || (below == half && (rest || kept & 1));
        bits = ((uint64_t)(1023 + 52 + dropped - shift + n->exponent) << 52) + (kept - (EXACT >> 1));
        memcpy(&value, &bits, sizeof value);
    }
#endif
    else return 0;
    *out = n->negative ? -value : value;
    return 1;
}

/* ---- lines -------------------------------------------------------------------------------------------------- */

static inline const uint8_t *skip_blanks(const uint8_t *p, const uint8_t *end) {
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r')) p++;
    return p;
}

static inline const uint8_t *skip_word(const uint8_t *p, const uint8_t *end, const char *word, int64_t length) {
    return end - p >= length && memcmp(p, word, (size_t)length) == 0 ? p + length : NULL;
}

/* Behind any value; NULL if it is no JSON. Texts may be no UTF-8. */
static const uint8_t *skip_value(const uint8_t *p, const uint8_t *end, int depth) {
    number n;
    if (p == end || depth > DEEPEST) return NULL;
    switch (*p) {
    case '"': return skip_text(p + 1, end);
    case 't': return skip_word(p, end, "true", 4);
    case 'f': return skip_word(p, end, "false", 5);
    case 'n': return skip_word(p, end, "null", 4);
    case '{':
    case '[': break;
    default: return read_number(p, end, &n);
    }
    uint8_t closing = *p == '{' ? '}' : ']';
    p = skip_blanks(p + 1, end);
    if (p < end && *p == closing) return p + 1;
    for (;; p = skip_blanks(p + 1, end)) {
        if (closing == '}') {
            if (p == end || *p != '"' || !(p = skip_text(p + 1, end))) return NULL;
            p = skip_blanks(p, end);
            if (p == end || *p != ':') return NULL;
            p = skip_blanks(p + 1, end);
        }
        if (!(p = skip_value(p, end, depth + 1))) return NULL;
        p = skip_blanks(p, end);
        if (p < end && *p == closing) return p + 1;
        if (p == end || *p != ',') return NULL;
    }
}

/* Behind the value of a wanted key; NULL if it is not of the kind of the field. */
static inline const uint8_t *read_value(const json_field *f, int64_t row, const uint8_t *p, const uint8_t *end) {
    number n;
    double value;
    if (p == end || f->have[row] != NO_KEY) return NULL; /* a key that comes twice: its first text is not checked here */
    f->have[row] = *p == 'n' ? IS_NULL : HAS_VALUE;
    if (*p == 'n') return skip_word(p, end, "null", 4);
    switch (f->kind) {
    case 't': {
        const uint8_t *begin = p + 1;
        int escaped;
        if (*p != '"' || !(p = end_of_text(begin, end, &escaped))) return NULL;
        if (f->out) ((json_text *)f->out)[row] = (json_text){(uint64_t)(uintptr_t)begin, p - 1 - begin, escaped};
        return p;
    }
    case 'b':
        if (f->out) ((uint8_t *)f->out)[row] = *p == 't';
        return *p == 't' ? skip_word(p, end, "true", 4) : skip_word(p, end, "false", 5);
    case 'i':
        if (!(p = read_number(p, end, &n)) || !n.is_integer || n.too_long || n.digits > (uint64_t)INT64_MAX + (uint64_t)n.negative) return NULL;
        if (f->out) ((int64_t *)f->out)[row] = (int64_t)(n.negative ? 0 - n.digits : n.digits);
        return p;
    default:
        if (!(p = read_number(p, end, &n))) return NULL;
        if (n.is_integer) { /* -0 is an integer, and so 0 */
            if (f->kind == 'f' || n.too_long || n.digits > EXACT) return NULL;
            value = (double)(n.negative ? -(int64_t)n.digits : (int64_t)n.digits);
        } else if (!nearest_double(&n, &value)) return NULL;
        if (f->out) ((double *)f->out)[row] = value;
        return p;
    }
}

enum { NOT_WANTED = -1, REFUSED = -2, NO_MORE = -3 };

/* The field of the key that begins at *at, which is then behind its closing quote; NOT_WANTED or REFUSED if there is none.
 * `expected` is looked at first. */
static inline int64_t read_key(const json_job *j, int64_t expected, const uint8_t **at, const uint8_t *end) {
    const uint8_t *p = *at;
    int escaped;
    if (expected < j->count) {
        const json_field *f = &j->fields[expected];
        if (end - p > f->length && p[f->length] == '"' && memcmp(p, f->name, (size_t)f->length) == 0) {
            *at = p + f->length + 1;
            return expected;
        }
    }
    if (!(*at = end_of_text(p, end, &escaped)) || escaped) return REFUSED;
    for (int64_t k = 0; k < j->count; k++)
        if (j->fields[k].length == *at - 1 - p && memcmp(p, j->fields[k].name, (size_t)j->fields[k].length) == 0) return k;
    return j->strict ? REFUSED : NOT_WANTED;
}

/* Reads what is before a value: a brace or a comma, a key and a colon. Returns the field of the key. */
static int64_t read_separator(const json_job *j, int is_first, int64_t expected, const uint8_t **at, const uint8_t *end) {
    const uint8_t *p = skip_blanks(*at, end);
    if (is_first) {
        if (p == end || *p != '{') return REFUSED;
        p = skip_blanks(p + 1, end);
    }
    if (p < end && *p == '}') return skip_blanks(p + 1, end) == end ? NO_MORE : REFUSED;
    if (!is_first) {
        if (p == end || *p != ',') return REFUSED;
        p = skip_blanks(p + 1, end);
    }
    if (p == end || *p++ != '"') return REFUSED;
    int64_t field = read_key(j, expected, &p, end);
    if (field == REFUSED) return REFUSED;
    p = skip_blanks(p, end);
    if (p == end || *p != ':') return REFUSED;
    *at = skip_blanks(p + 1, end);
    return field;
}

/* The bytes before the value of a field, as they were in the line before: most lines have the same ones. */
enum { SEPARATOR_WORDS = 3, SEPARATORS = 64 };

typedef struct {
    uint64_t words[SEPARATOR_WORDS], masks[SEPARATOR_WORDS];
    int64_t length, field;
} separator;

static inline void remember(separator *s, const uint8_t *from, const uint8_t *to, int64_t field) {
    int64_t length = to - from;
    memset(s, 0, sizeof *s);
    if (length > (int64_t)sizeof s->words) return;
    memcpy(s->words, from, (size_t)length);
    memset(s->masks, 255, (size_t)length);
    s->length = length, s->field = field;
}

static inline int is_there(const separator *s, const uint8_t *p, const uint8_t *end) {
    uint64_t words[SEPARATOR_WORDS], different = 0;
    if (!s->length || end - p < (int64_t)sizeof words) return 0;
    memcpy(words, p, sizeof words);
    for (int k = 0; k < SEPARATOR_WORDS; k++) different |= (words[k] ^ s->words[k]) & s->masks[k];
    return !different;
}

/* Parses a line. `separators` are what was at the beginning of the line before, and behind each of its fields. */
static inline int parse_line(const json_job *j, int64_t row, separator *separators) {
    const uint8_t *p = j->source[row], *end = p + j->length[row];
    int64_t expected = 0, field = NO_MORE; /* behind which field p is */
    for (int is_first = 1;; is_first = 0) {
        int64_t number = is_first ? 0 : field + 1;
        separator *s = number < SEPARATORS && (is_first || field >= 0) ? &separators[number] : NULL;
        if (s && is_there(s, p, end)) field = s->field, p = skip_blanks(p + s->length, end);
        else {
            const uint8_t *from = p;
            field = read_separator(j, is_first, expected, &p, end);
            if (field == NO_MORE) return 1;
            if (field == REFUSED) return 0;
            if (s && field >= 0) remember(s, from, p, field);
        }
        if (field >= 0) expected = field + 1;
        p = field < 0 ? skip_value(p, end, 0) : read_value(&j->fields[field], row, p, end);
        if (!p) return 0;
    }
}

#ifdef HAVE_THREADS
static int is_refused(const json_job *j) { return __atomic_load_n(j->refused, __ATOMIC_RELAXED); }
static void refuse(const json_job *j) { __atomic_store_n(j->refused, 1, __ATOMIC_RELAXED); }
#else
static int is_refused(const json_job *j) { return *j->refused; }
static void refuse(const json_job *j) { *j->refused = 1; }
#endif

static void parse_part(const void *whole, int64_t from, int64_t to) {
    const json_job *j = whole;
    separator separators[SEPARATORS] = {0};
    for (int64_t k = is_refused(j) ? to : from; k < to; k++) {
        if (k + AHEAD < to) fetch(j->source[k + AHEAD], j->length[k + AHEAD]);
        if (!parse_line(j, k, separators)) {
            refuse(j);
            break;
        }
    }
#ifdef HAVE_THREADS
    __atomic_store_n(&j->done[from], 1, __ATOMIC_RELEASE);
#endif
}

/* ---- texts as objects ---------------------------------------------------------------------------------------- */

typedef struct {
    const json_field *field;
    PyObject *list;
    const uint8_t *seen[SLOTS]; /* see `one_text` */
    int64_t sizes[SLOTS];
    PyObject *last[SLOTS];
} text_list;

static PyObject *text_object(const json_text *t, text_list *l) {
    const uint8_t *begin = (const uint8_t *)(uintptr_t)t->begin;
    if (!t->escaped) return one_text(begin, t->length, l->seen, l->sizes, l->last);
    uint8_t *plain = PyMem_Malloc((size_t)t->length + 1);
    if (!plain) return PyErr_NoMemory();
    int64_t length = without_escapes(begin, begin + t->length, plain);
    PyObject *made = length < 0 ? NULL : PyUnicode_DecodeUTF8((const char *)plain, (Py_ssize_t)length, NULL);
    PyMem_Free(plain);
    return made;
}

/* Adds the texts of some lines, None where there is none; 0 if one cannot be decoded. They may be in the cache of another
 * processor, whose thread has parsed the lines. */
static int add_texts(text_list *l, int64_t from, int64_t to) {
    const json_text *texts = l->field->out;
    const uint8_t *have = l->field->have;
    for (int64_t k = from; k < to; k++) {
        if (k + AHEAD < to && have[k + AHEAD] == HAS_VALUE) fetch((const uint8_t *)(uintptr_t)texts[k + AHEAD].begin, texts[k + AHEAD].length);
        PyObject *made = have[k] == HAS_VALUE ? text_object(texts + k, l) : Py_NewRef(Py_None);
        if (!made) return 0;
        PyList_SetItem(l->list, (Py_ssize_t)k, made);
    }
    return 1;
}

/* Makes the texts of all lines. Other threads may still parse the lines, in parts of `step`: this one parses only what it
 * would have to wait for. 0 if a line is refused, or an object could not be made. */
static int make_texts(const json_job *j, int64_t n, int64_t step, text_list *lists, int64_t count) {
    for (int64_t from = 0, to; from < n; from = to) {
        to = n - from < step ? n : from + step;
#ifdef HAVE_THREADS
        while (!__atomic_load_n(&j->done[from], __ATOMIC_ACQUIRE))
            if (!take_part()) sched_yield();
#endif
        if (is_refused(j)) return 0;
        for (int64_t k = 0; k < count; k++)
            if (!add_texts(&lists[k], from, to)) return 0;
    }
    return 1;
}

/* Fills the fields from the arguments; `outs` are exported to `views`. */
static int fields_of(PyObject *keys, const char *kinds, PyObject *outs, uint8_t *have, int64_t n, json_field *fields, Py_buffer *views, int64_t count) {
    for (int64_t k = 0; k < count; k++) {
        json_field *f = &fields[k];
        PyObject *out = PyTuple_GetItem(outs, (Py_ssize_t)k), *key = PyTuple_GetItem(keys, (Py_ssize_t)k);
        char *name;
        if (!out || !key || PyBytes_AsStringAndSize(key, &name, &f->length) < 0) return 0;
        f->name = name, f->kind = kinds[k], f->have = have + k * n;
        if (out == Py_None) continue;
        if (PyObject_GetBuffer(out, &views[k], PyBUF_WRITABLE) < 0) return 0;
        int64_t width = f->kind == 'b' ? 1 : f->kind == 't' ? (int64_t)sizeof(json_text) : 8;
        f->out = views[k].buf;
        if (views[k].len != n * width || (uintptr_t)f->out % (width == 1 ? 1 : 8)) {
            PyErr_Format(PyExc_ValueError, "outs: expected %lld aligned bytes for key %lld, got %zd", (long long)(n * width), (long long)k, views[k].len);
            return 0;
        }
    }
    return 1;
}

/* Parses lines. `kinds` has a letter for each key: i for int64, f for float64 that are written as floats, n for all numbers as
 * float64, b for truth values as bytes, t for texts. `outs` has for each key the array to write to, that of texts 24 bytes for
 * each line, or None. `have` gets, for each key and line, 0 if the line has no such key, 1 for a value, 2 for null. With
 * `strict`, other keys are refused. Returns a tuple with a list for each key that has texts to write, else None; -1 if a line
 * is refused. */
static PyObject *json(PyObject *self, PyObject *args) {
    Py_buffer address, size, which, begin, length, have;
    PyObject *keys, *outs, *result = NULL;
    const char *kinds;
    int strict, threads, refused = 0;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*O!yO!w*pi:json", &address, &size, &which, &begin, &length, &PyTuple_Type, &keys, &kinds,
                          &PyTuple_Type, &outs, &have, &strict, &threads))
        return NULL;
    Py_ssize_t count = (Py_ssize_t)strlen(kinds);
    const uint8_t **source = NULL;
    uint8_t *done = NULL;
    json_field *fields = PyMem_Calloc((size_t)count + 1, sizeof *fields);
    Py_buffer *views = PyMem_Calloc((size_t)count + 1, sizeof *views);
    text_list *lists = PyMem_Calloc((size_t)count + 1, sizeof *lists);
    int64_t n, k = 0, segment = 0, total = 0, texts = 0, step = 0;
    table t;
    if (!table_of(&address, &size, &t) || !ranges_of(&which, &begin, &length, &n)) goto end;
    if (PyTuple_Size(keys) != count || PyTuple_Size(outs) != count || (count && n > PY_SSIZE_T_MAX / count) || have.len != count * n) {
        PyErr_SetString(PyExc_ValueError, "json: expected a key, a kind, an output and a presence of each line for each field");
        goto end;
    }
    source = PyMem_Malloc((size_t)(n ? n : 1) * sizeof *source);
    done = PyMem_Calloc((size_t)n + 1, 1);
    if (!source || !done || !fields || !views || !lists) {
        PyErr_NoMemory();
        goto end;
    }
    if (!fields_of(keys, kinds, outs, have.buf, n, fields, views, count)) goto end;
    for (int64_t i = 0; i < count; i++)
        if (fields[i].kind == 't' && fields[i].out) lists[texts++].field = &fields[i];
    const int64_t *l = length.buf;
    json_job j = {source, l, fields, count, strict, done, &refused};
    verdict v;
    Py_BEGIN_ALLOW_THREADS
    v = check(&t, which.buf, begin.buf, l, n, source, &k, &segment);
    for (int64_t i = 0; i < n && v == FINE; i++) total = total < INT64_MAX / PARSE_COST - l[i] ? total + l[i] : total;
    if (v == FINE) {
        memset(have.buf, NO_KEY, (size_t)have.len);
        step = begin_parts(parse_part, &j, n, PARSE_COST * total, threads);
        if (!step) parse_part(&j, 0, n);
        else if (!texts) end_parts();
    }
    Py_END_ALLOW_THREADS
    if (v != FINE) {
        result = answer(v, k, segment);
        goto end;
    }
    int fine = 1;
    for (int64_t i = 0; i < texts && fine; i++) fine = (lists[i].list = PyList_New((Py_ssize_t)n)) != NULL;
    fine = fine && make_texts(&j, n, step ? step : n, lists, texts);
    if (step && texts) {
        if (!fine) refuse(&j); /* the others need not go on */
        end_parts();
    }
    result = fine && !refused ? PyTuple_New(count) : NULL;
    for (int64_t i = 0, made = 0; result && i < count; i++) {
        int has_texts = made < texts && lists[made].field == &fields[i];
        PyTuple_SetItem(result, (Py_ssize_t)i, Py_NewRef(has_texts ? lists[made++].list : Py_None));
    }
    if (!result && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
    if (!result && !PyErr_Occurred()) result = PyLong_FromLong(-1);
end:
    for (int64_t i = 0; views && i < count; i++)
        if (views[i].obj) PyBuffer_Release(&views[i]);
    for (int64_t i = 0; i < texts; i++) Py_XDECREF(lists[i].list);
    PyMem_Free(source), PyMem_Free(done), PyMem_Free(fields), PyMem_Free(views), PyMem_Free(lists);
    PyBuffer_Release(&address), PyBuffer_Release(&size), PyBuffer_Release(&which), PyBuffer_Release(&begin), PyBuffer_Release(&length), PyBuffer_Release(&have);
    return result;
}
