/* The resize kernel: scale a box of an image of 8 bit channels, by bilinear interpolation with antialiasing.
 *
 * Each output pixel is a weighted mean of the pixels around its centre, with weights that fall linearly to zero at a
 * distance of one pixel, of the output where that is coarser. Weights are integers whose sum is exactly 1 << WEIGHT_BITS,
 * and rows in between keep EXTRA_BITS more than 8, so results differ from those of Pillow by at most 1. All arithmetic is
 * of integers: the code for SSE2 and the plain code give the same bytes. Rows are scaled first: a row of the output needs
 * one buffer of one row, which stays in the cache.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { WEIGHT_BITS = 14, EXTRA_BITS = 6, DROP = WEIGHT_BITS - EXTRA_BITS, LAST = WEIGHT_BITS + EXTRA_BITS };
enum { MAX_SIDE = 1 << 20 };

/* The weights of one axis: output pixel k is the sum over t < used[k] of weight[k * taps + t] * input[first[k] + t]. */
typedef struct {
    int32_t *first, *used;
    int16_t *weight;
    int32_t taps; /* even; weights from used[k] on are zero */
    int32_t low, high; /* the inputs that are used */
} axis;

static void release(axis *a) {
    free(a->first);
    free(a->used);
    free(a->weight);
}

static int weigh(axis *a, double begin, double end, int32_t inputs, int32_t outputs) {
    double scale = (end - begin) / outputs, reach = scale > 1 ? scale : 1;
    int64_t taps = 2 * (int64_t)ceil(reach) + 2;
    double *share = malloc((size_t)taps * sizeof *share);
    a->taps = (int32_t)taps;
    a->first = malloc((size_t)outputs * sizeof *a->first);
    a->used = malloc((size_t)outputs * sizeof *a->used);
    a->weight = calloc((size_t)outputs * (size_t)taps, sizeof *a->weight);
    if (!share || !a->first || !a->used || !a->weight) {
        free(share);
        return 0;
    }
    a->low = inputs, a->high = 0;
    for (int32_t k = 0; k < outputs; k++) {
        double centre = begin + (k + 0.5) * scale, sum = 0;
        int64_t first = (int64_t)(centre - reach + 0.5), last = (int64_t)(centre + reach + 0.5);
        if (first < 0) first = 0;
        if (last > inputs) last = inputs;
        if (first >= last) first = last - 1; /* a box thinner than a pixel at the edge */
        if (last - first > taps) last = first + taps;
        for (int64_t t = 0; t < last - first; t++) {
            double distance = fabs((double)(first + t) + 0.5 - centre) / reach;
            share[t] = distance < 1 ? 1 - distance : 0;
            sum += share[t];
        }
        int16_t *weight = a->weight + (size_t)k * (size_t)taps;
        int32_t rest = 1 << WEIGHT_BITS;
        int64_t largest = 0;
        for (int64_t t = 0; t < last - first; t++) {
            weight[t] = (int16_t)(sum > 0 ? lrint(share[t] / sum * (1 << WEIGHT_BITS)) : 0);
            rest -= weight[t];
            if (weight[t] > weight[largest]) largest = t;
        }
        weight[largest] = (int16_t)(weight[largest] + rest);
        while (!weight[last - first - 1]) last--;
        a->first[k] = (int32_t)first;
        a->used[k] = (int32_t)(last - first);
        if (first < a->low) a->low = (int32_t)first;
        if (last > a->high) a->high = (int32_t)last;
    }
    free(share);
    return 1;
}

/* Mean of rows, `count` bytes of each from `source` on, with EXTRA_BITS more bits. */
static void mix_rows(const uint8_t *source, int64_t stride, const int16_t *weight, int32_t rows, int64_t count, int16_t *out) {
    int64_t x = 0;
#if defined(__SSE2__)
    const __m128i zero = _mm_setzero_si128(), half = _mm_set1_epi32(1 << (DROP - 1));
    for (; x + 16 <= count; x += 16) {
        __m128i a = half, b = half, c = half, d = half;
        for (int32_t t = 0; t < rows; t += 2) {
            const uint8_t *one = source + t * stride + x, *two = t + 1 < rows ? one + stride : one;
            __m128i pair = _mm_set1_epi32((uint16_t)weight[t] | (int32_t)((uint32_t)(t + 1 < rows ? weight[t + 1] : 0) << 16));
            __m128i u = _mm_loadu_si128((const __m128i *)one), v = _mm_loadu_si128((const __m128i *)two);
            __m128i low = _mm_unpacklo_epi8(u, v), high = _mm_unpackhi_epi8(u, v);
            a = _mm_add_epi32(a, _mm_madd_epi16(_mm_unpacklo_epi8(low, zero), pair));
            b = _mm_add_epi32(b, _mm_madd_epi16(_mm_unpackhi_epi8(low, zero), pair));
            c = _mm_add_epi32(c, _mm_madd_epi16(_mm_unpacklo_epi8(high, zero), pair));
            d = _mm_add_epi32(d, _mm_madd_epi16(_mm_unpackhi_epi8(high, zero), pair));
        }
        __m128i low = _mm_packs_epi32(_mm_srai_epi32(a, DROP), _mm_srai_epi32(b, DROP));
        __m128i high = _mm_packs_epi32(_mm_srai_epi32(c, DROP), _mm_srai_epi32(d, DROP));
        _mm_storeu_si128((__m128i *)(out + x), low);
        _mm_storeu_si128((__m128i *)(out + x + 8), high);
    }
#endif
    for (; x < count; x++) {
        int32_t sum = 1 << (DROP - 1);
        for (int32_t t = 0; t < rows; t++) sum += weight[t] * source[t * stride + x];
        out[x] = (int16_t)(sum >> DROP);
    }
}

static uint8_t rounded(int32_t sum) { return (uint8_t)((sum + (1 << (LAST - 1))) >> LAST); }

/* Mean of pixels of one channel. */
static void mix_grey(const int16_t *row, const axis *a, int32_t outputs, uint8_t *out, int64_t step) {
    for (int32_t k = 0; k < outputs; k++, out += step) {
        const int16_t *weight = a->weight + (size_t)k * (size_t)a->taps, *from = row + (a->first[k] - a->low);
        int32_t sum = 0;
        for (int32_t t = 0; t < a->used[k]; t++) sum += weight[t] * from[t];
        *out = rounded(sum);
    }
}

/* Mean of pixels of three channels. */
static void mix_colours(const int16_t *row, const axis *a, int32_t outputs, uint8_t *out, int64_t step) {
    for (int32_t k = 0; k < outputs; k++, out += step) {
        const int16_t *weight = a->weight + (size_t)k * (size_t)a->taps, *from = row + 3 * (int64_t)(a->first[k] - a->low);
#if defined(__SSE2__)
        __m128i sum = _mm_set1_epi32(1 << (LAST - 1));
        for (int32_t t = 0; t < a->used[k]; t += 2) { /* red, green, blue of two pixels become pairs; the last lane is unused */
            int32_t two;
            memcpy(&two, weight + t, sizeof two);
            __m128i pixels = _mm_loadu_si128((const __m128i *)(from + 3 * t));
            __m128i pairs = _mm_unpacklo_epi16(pixels, _mm_srli_si128(pixels, 6));
            sum = _mm_add_epi32(sum, _mm_madd_epi16(pairs, _mm_set1_epi32(two)));
        }
        sum = _mm_srai_epi32(sum, LAST);
        sum = _mm_packs_epi32(sum, sum);
        int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(sum, sum));
        memcpy(out, &bytes, 3);
#else
        int32_t red = 0, green = 0, blue = 0;
        for (int32_t t = 0; t < a->used[k]; t++) {
            red += weight[t] * from[3 * t], green += weight[t] * from[3 * t + 1], blue += weight[t] * from[3 * t + 2];
        }
        out[0] = rounded(red), out[1] = rounded(green), out[2] = rounded(blue);
#endif
    }
}

typedef struct {
    const uint8_t *source;
    uint8_t *out;
    Py_ssize_t height, width, channels, out_height, out_width, top, left, rows, columns;
    double box[4];
    int flip;
} request;

/* Return 0 if there is no memory. */
static int scale(const request *r) {
    axis down = {0}, across = {0};
    int16_t *row = NULL;
    int fine = weigh(&down, r->box[0], r->box[2], (int32_t)r->height, (int32_t)r->rows) &&
               weigh(&across, r->box[1], r->box[3], (int32_t)r->width, (int32_t)r->columns);
    if (fine) {
        int64_t count = (int64_t)(across.high - across.low) * r->channels, stride = r->width * r->channels;
        size_t room = (size_t)count + 16; /* a tap of weight zero is read, too, and pixels by eight channels */
        row = calloc(room, sizeof *row);
        fine = row != NULL;
        int64_t step = r->flip ? -r->channels : r->channels;
        Py_ssize_t begin = r->flip ? r->left + r->columns - 1 : r->left;
        for (Py_ssize_t y = 0; fine && y < r->rows; y++) {
            const uint8_t *source = r->source + down.first[y] * stride + across.low * r->channels;
            mix_rows(source, stride, down.weight + (size_t)y * (size_t)down.taps, down.used[y], count, row);
            uint8_t *out = r->out + ((r->top + y) * r->out_width + begin) * r->channels;
            (r->channels == 1 ? mix_grey : mix_colours)(row, &across, (int32_t)r->columns, out, step);
        }
    }
    free(row);
    release(&down);
    release(&across);
    return fine;
}

/* Whether all sizes are positive and small, images fill their buffers, and box and window are inside of them. */
static int fits(const request *r, Py_ssize_t source, Py_ssize_t out) {
    const Py_ssize_t sides[] = {r->height, r->width, r->out_height, r->out_width, r->rows, r->columns};
    for (size_t k = 0; k < sizeof sides / sizeof *sides; k++)
        if (sides[k] < 1 || sides[k] > MAX_SIDE) return 0;
    if (r->channels != 1 && r->channels != 3) return 0;
    if (source != r->height * r->width * r->channels || out != r->out_height * r->out_width * r->channels) return 0;
    if (r->top < 0 || r->left < 0 || r->top > r->out_height - r->rows || r->left > r->out_width - r->columns) return 0;
    return r->box[0] >= 0 && r->box[0] < r->box[2] && r->box[2] <= r->height && /* also false for NaN */
           r->box[1] >= 0 && r->box[1] < r->box[3] && r->box[3] <= r->width;
}

static PyObject *resize(PyObject *self, PyObject *args) {
    Py_buffer source, out;
    request r;
    if (!PyArg_ParseTuple(args, "y*(nnn)(dddd)w*(nn)(nnnn)p:resize", &source, &r.height, &r.width, &r.channels, &r.box[0], &r.box[1],
                          &r.box[2], &r.box[3], &out, &r.out_height, &r.out_width, &r.top, &r.left, &r.rows, &r.columns, &r.flip))
        return NULL;
    r.source = source.buf, r.out = out.buf;
    PyObject *result = NULL;
    if (!fits(&r, source.len, out.len)) {
        PyErr_SetString(PyExc_ValueError, "resize: expected images of 1 or 3 channels that fill their buffers, sides up to 2 ** 20, a box "
                                          "inside of the one and a window inside of the other");
    } else {
        int fine;
        Py_BEGIN_ALLOW_THREADS
        fine = scale(&r);
        Py_END_ALLOW_THREADS
        result = fine ? Py_NewRef(Py_None) : PyErr_NoMemory();
    }
    PyBuffer_Release(&source), PyBuffer_Release(&out);
    return result;
}

static PyMethodDef methods[] = {
    {"resize", resize, METH_VARARGS, "Scale a box of an image into a window of another one."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_resize", "The resize kernel; see image_steps.py.", 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__resize(void) { return PyModuleDef_Init(&module); }
