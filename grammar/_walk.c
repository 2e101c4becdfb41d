/* Read a trie of tokens by a table of moves; and sets of tokens as packed bits.

   `dlm.grammar.masks.walks` does the same in numpy where this is not built. A test holds both
   equal. The nodes of the trie are in preorder: all nodes below a node come right after it. */

#include <limits.h>
#include <stdint.h>

enum { NOWHERE = -1, UNWRITTEN = -2 };        /* entries of a table without a next state */
enum { DONE = -1, FULL = -2, OUTSIDE = -3 };  /* results that are no states */
enum { RANGE, PLACE, ENDS, READ, CURSOR };    /* the numbers of a cursor */

typedef struct {
    const uint8_t *byte;    /* the last byte of each node's text */
    const int32_t *size;    /* nodes below each node, itself included */
    const int32_t *depth;   /* bytes of each node's text */
    const int32_t *first;   /* index of each node's first token; one more number at the end */
    const int32_t *tokens;
} Trie;

typedef struct {
    const uint8_t *column;  /* by byte */
    const int32_t *to;      /* the next state, by state and column */
    const uint8_t *final;   /* by state: a text may end there */
    int32_t width, rows;
} Table;

/* Read the nodes from begin[i] to end[i] for each of `ranges` ranges. A range holds whole subtrees
   of siblings, or nothing, and `state` is the state before their bytes.

   Sets the bits of the tokens reached in `words`. Lists in `ends` the nodes reached at which a text
   may end and a token continues. Counts the nodes whose bytes were read in cursor[READ].

   Returns DONE; or a state whose row of the table must be written before the walk can go on; or
   FULL, if `ends` must be emptied and cursor[ENDS] set to 0; or OUTSIDE, for a state or a depth that
   has no place in the arrays. The next call with the same cursor and stack goes on. The cursor
   begins as zeros. */
static int32_t walk(const Trie *trie, const Table *table, int32_t state,
                    const int32_t *begin, const int32_t *end, int64_t ranges,
                    int64_t *cursor, int32_t *stack, int64_t deepest,
                    uint32_t *words, int32_t *ends, int64_t most_ends)
{
    int64_t range = cursor[RANGE], place = cursor[PLACE], count = cursor[ENDS], read = cursor[READ];
    int32_t result = DONE;

    for (; range < ranges; range++, place = 0) {
        if (begin[range] == end[range])
            continue;
        int32_t base = trie->depth[begin[range]];
        if (place < begin[range]) {
            place = begin[range];
            stack[0] = state;
        }
        while (place < end[range]) {
            int64_t depth = (int64_t)trie->depth[place] - base;
            if (depth < 0 || depth + 1 >= deepest || stack[depth] < 0 || stack[depth] >= table->rows) {
                result = OUTSIDE;
                goto stop;
            }
            int32_t before = stack[depth];
            int32_t after = table->to[(int64_t)before * table->width + table->column[trie->byte[place]]];
            if (after == UNWRITTEN) {
                result = before;
                goto stop;
            }
            if (after < 0) {
                read++;
                place += trie->size[place];
                continue;
            }
            if (after >= table->rows) {
                result = OUTSIDE;
                goto stop;
            }
            if (table->final[after] && trie->size[place] > 1) {
                if (count == most_ends) {
                    result = FULL;
                    goto stop;
                }
                ends[count++] = (int32_t)place;
            }
            read++;
            for (int32_t i = trie->first[place]; i < trie->first[place + 1]; i++)
                words[trie->tokens[i] >> 5] |= (uint32_t)1 << (trie->tokens[i] & 31);
            stack[depth + 1] = after;
            place++;
        }
    }
stop:
    cursor[RANGE] = range;
    cursor[PLACE] = place;
    cursor[ENDS] = count;
    cursor[READ] = read;
    return result;
}

#ifndef WITHOUT_PYTHON  /* the driver of a test includes the part above alone */

#include "_shared.h"

/* The version of the functions and their arguments, which `dlm.grammar.native` compares. */
#define VERSION 13

enum { BYTE, SIZE, DEPTH, FIRST, TOKENS, COLUMN, TO, FINAL, BEGIN, END, NUMBERS, STACK, WORDS, LIST,
       BUFFERS };

static const Py_ssize_t item_size[BUFFERS] = {1, 4, 4, 4, 4, 1, 4, 1, 4, 4, 8, 4, 4, 4};

/* Whether a buffer holds whole numbers of `size` bytes. */
int of_numbers(const Py_buffer *buffer, Py_ssize_t size)
{
    return buffer->len % size == 0 && (uintptr_t)buffer->buf % (uintptr_t)size == 0;
}

/* Whether the buffers have the lengths that a walk relies on. */
static int fit(const Py_buffer *b, const Py_ssize_t *n)
{
    for (int i = 0; i < BUFFERS; i++)
        if (!of_numbers(&b[i], item_size[i]))
            return 0;
    if (n[SIZE] != n[BYTE] || n[DEPTH] != n[BYTE] || n[FIRST] != n[BYTE] + 1 || n[COLUMN] != 256)
        return 0;
    if (n[FINAL] < 1 || n[TO] < n[FINAL] || n[TO] % n[FINAL] || n[FINAL] > INT32_MAX)
        return 0;
    if (n[BEGIN] != n[END] || n[NUMBERS] != CURSOR || n[STACK] < 1 || n[LIST] < 1)
        return 0;
    const int32_t *begin = b[BEGIN].buf, *end = b[END].buf;
    for (Py_ssize_t i = 0; i < n[BEGIN]; i++)
        if (begin[i] < 1 || end[i] < begin[i] || end[i] > n[BYTE])
            return 0;
    const uint8_t *column = b[COLUMN].buf;
    Py_ssize_t width = n[TO] / n[FINAL];
    for (int i = 0; i < 256; i++)
        if (column[i] >= width)
            return 0;
    return 1;
}

static PyObject *walk_ranges(PyObject *module, PyObject *args)
{
    Py_buffer b[BUFFERS];
    Py_ssize_t n[BUFFERS];
    int state;
    int32_t result = OUTSIDE;
    (void)module;

    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*iy*y*w*w*w*w*", &b[BYTE], &b[SIZE], &b[DEPTH],
                          &b[FIRST], &b[TOKENS], &b[COLUMN], &b[TO], &b[FINAL], &state, &b[BEGIN],
                          &b[END], &b[NUMBERS], &b[STACK], &b[WORDS], &b[LIST]))
        return NULL;
    for (int i = 0; i < BUFFERS; i++)
        n[i] = b[i].len / item_size[i];
    int right = fit(b, n);
    if (right) {
        Trie trie = {b[BYTE].buf, b[SIZE].buf, b[DEPTH].buf, b[FIRST].buf, b[TOKENS].buf};
        Table table = {b[COLUMN].buf, b[TO].buf, b[FINAL].buf, (int32_t)(n[TO] / n[FINAL]),
                       (int32_t)n[FINAL]};
        /* The interpreter is held: another thread may not add to the table meanwhile. */
        result = walk(&trie, &table, state, b[BEGIN].buf, b[END].buf, n[BEGIN], b[NUMBERS].buf,
                      b[STACK].buf, n[STACK], b[WORDS].buf, b[LIST].buf, n[LIST]);
    }
    for (int i = 0; i < BUFFERS; i++)
        PyBuffer_Release(&b[i]);
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "arrays of a walk must fit together");
        return NULL;
    }
    if (result == OUTSIDE) {
        PyErr_SetString(PyExc_ValueError, "a state of a walk must have a row of its table");
        return NULL;
    }
    return PyLong_FromLong(result);
}

static PyObject *add_sets(PyObject *module, PyObject *args)
{
    Py_buffer words;
    PyObject *sets;
    (void)module;

    if (!PyArg_ParseTuple(args, "w*O!", &words, &PyList_Type, &sets))
        return NULL;
    Draft draft = {words.buf, NULL, 0, words.len / 4, 1};
    int right = of_numbers(&words, 4);
    if (!right)
        PyErr_SetString(PyExc_ValueError, "packed bits must be whole words");
    right = right && add_each(&draft, sets);
    PyBuffer_Release(&words);
    if (right)
        Py_RETURN_NONE;
    return NULL;
}

/* Whether any of `count` words holds a bit. */
static int any_in(const uint32_t *words, Py_ssize_t count)
{
    uint32_t any = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        any |= words[i];
    return any != 0;
}

enum { STEP = 64 };  /* words that are looked at together */

/* Return the tokens of packed bits as bytes of int32; None if more than `most` words hold a bit. */
static PyObject *numbers_if_few(PyObject *module, PyObject *args)
{
    Py_buffer bits;
    unsigned char most;
    (void)module;

    if (!PyArg_ParseTuple(args, "y*b", &bits, &most))
        return NULL;
    int32_t tokens[32 * UCHAR_MAX];
    const uint32_t *words = bits.buf;
    Py_ssize_t count = bits.len / 4, used = 0, n = 0, end;
    int right = of_numbers(&bits, 4);
    for (Py_ssize_t begin = 0; right && used <= most && begin < count; begin = end) {
        end = count - begin < STEP ? count : begin + STEP;
        if (!any_in(words + begin, end - begin))
            continue;
        for (Py_ssize_t i = begin; i < end; i++) {
            if (words[i] && ++used > most)
                break;
            for (int bit = 0; words[i] && bit < 32; bit++)
                if (words[i] >> bit & 1)
                    tokens[n++] = (int32_t)(32 * i + bit);
        }
    }
    PyBuffer_Release(&bits);
    if (right && used <= most)
        return PyBytes_FromStringAndSize((char *)tokens, 4 * n);
    if (right)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "packed bits must be whole words");
    return NULL;
}

static PyMethodDef methods[] = {
    {"automaton_of_words", automaton_of_words, METH_VARARGS,
     "Make the automaton of words, or of all others; see _words.c."},
    {"least_costs", least_costs, METH_VARARGS,
     "Find the fewest bytes to the ends of rules; see _costs.c."},
    {"add_sets", add_sets, METH_VARARGS, "Add sets of tokens to packed bits; see _walk.c."},
    {"numbers_if_few", numbers_if_few, METH_VARARGS, "List the bits that are set; see _walk.c."},
    {"walk_ranges", walk_ranges, METH_VARARGS, "Read ranges of a trie; see _walk.c."},
    {NULL, NULL, 0, NULL},
};

static int begin(PyObject *module)
{
    Module *state = PyModule_GetState(module);
    if (PyModule_AddIntConstant(module, "VERSION", VERSION) < 0)
        return -1;
    state->trie = make_trie_type(module);
    if (state->trie == NULL || PyModule_AddObjectRef(module, "Trie", (PyObject *)state->trie) < 0)
        return -1;
    state->rows = make_rows_type(module);
    if (state->rows == NULL)
        return -1;
    if (PyModule_AddObjectRef(module, "Rows", (PyObject *)state->rows) < 0)
        return -1;
    if (!make_state_types(module, state))
        return -1;
    return PyModule_AddObjectRef(module, "States", (PyObject *)state->states);
}

static void end(void *module)
{
    Module *state = PyModule_GetState(module);
    if (state == NULL)
        return;
    Py_XDECREF((PyObject *)state->trie);
    Py_XDECREF((PyObject *)state->rows);
    Py_XDECREF((PyObject *)state->states);
    Py_XDECREF((PyObject *)state->cell);
    free_spare_memory(state);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, begin}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_walk", "Walks along a trie, and sets of tokens, in C.",
    sizeof(Module), methods, slots, NULL, NULL, end,
};

PyMODINIT_FUNC PyInit__walk(void)
{
    return PyModuleDef_Init(&definition);
}

#endif
