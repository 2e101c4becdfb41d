/* A table of sets of tokens as packed bits, in which each set has one row.

   `dlm.grammar.masks.rows` does the same in numpy where this is not built. A test holds both equal.
   Rows that are not in use are zeros. A set is made apart, with a list of the words that hold bits:
   a set of few tokens takes no look at a whole row, and touches few pages of memory. */

#include "_shared.h"

#include <stdlib.h>
#include <string.h>

enum {
    KEYS = 8192,        /* random factors of words; a power of two */
    BUCKETS = 1024,     /* lists of rows, by their digests */
    PARTS = 64,         /* of a row, of which it is known whether they hold a bit */
    SPARE_ROWS = 128,   /* rows of a table whose memory is used again */
};

typedef struct {
    uint64_t digest;
    uint64_t parts;     /* a bit for each part of the row that holds one */
    int32_t used;       /* words that hold a bit */
    int32_t next;       /* 1 + another row of the bucket; 0: there is none */
} Row;

typedef struct {
    PyObject_HEAD
    uint32_t *words;            /* of all rows */
    Row *rows;
    uint32_t *made;             /* the set that is being made; zeros before and after */
    int32_t *touched;           /* its words that hold bits */
    int32_t buckets[BUCKETS];   /* 1 + a row; 0: there is none */
    Py_ssize_t width, most, count;
    int part;                   /* the size of a part: words, as a power of two */
    int busy;                   /* whether a set is being made */
} Rows;

static uint32_t keys[KEYS];

static void make_keys(void)
{
    uint64_t state = 0;
    for (int i = 0; i < KEYS; i++) {
        state += 0x9E3779B97F4A7C15u;
        uint64_t mixed = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
        keys[i] = (uint32_t)(mixed >> 32);
    }
}

static uint32_t *row_at(const Rows *rows, Py_ssize_t row)
{
    return rows->words + row * rows->width;
}

static size_t bytes_of(const Rows *rows)
{
    return (size_t)rows->most * (size_t)rows->width * 4;
}

/* Where a part of a row begins. The last parts may have fewer words than others, or none. */
static Py_ssize_t part_at(const Rows *rows, int part)
{
    Py_ssize_t begin = (Py_ssize_t)part << rows->part;
    return begin < rows->width ? begin : rows->width;
}

/* Return the part of a digest for words from `begin` to `end`: a sum of products, which is the same
   for all words together as for those that hold bits. */
static uint64_t digest_of(const uint32_t *words, Py_ssize_t begin, Py_ssize_t end)
{
    uint64_t digest = 0;
    for (Py_ssize_t stop; begin < end; begin = stop) {
        const uint32_t *key = keys + begin % KEYS, *word = words + begin;
        uint64_t sum = 0;
        stop = begin - begin % KEYS + KEYS;
        stop = stop < end ? stop : end;
        for (Py_ssize_t i = 0; i < stop - begin; i++)
            sum += (uint64_t)key[i] * word[i];
        digest += sum * (uint64_t)(2 * (begin / KEYS) + 1);
    }
    return digest;
}

static Row measured(const Rows *rows, const Draft *draft)
{
    Row row = {0, 0, 0, 0};
    const uint32_t *words = draft->words;
    if (!draft->whole) {
        for (Py_ssize_t i = 0; i < draft->count; i++) {
            int32_t at = draft->touched[i];
            if (!words[at])
                continue;  /* its tokens were taken out */
            row.used++;
            row.parts |= (uint64_t)1 << (at >> rows->part);
            row.digest += digest_of(words, at, at + 1);
        }
        return row;
    }
    for (int part = 0; part < PARTS; part++) {
        Py_ssize_t begin = part_at(rows, part), end = part_at(rows, part + 1);
        int32_t used = 0;
        for (Py_ssize_t i = begin; i < end; i++)
            used += words[i] != 0;
        row.used += used;
        row.parts |= (uint64_t)(used != 0) << part;
    }
    row.digest = digest_of(words, 0, draft->width);
    return row;
}

/* Whether a draft holds the set of a row in which as many words hold a bit. */
static int are_equal(const uint32_t *row, const Draft *draft)
{
    if (draft->whole)
        return !memcmp(row, draft->words, (size_t)draft->width * 4);
    for (Py_ssize_t i = 0; i < draft->count; i++)
        if (row[draft->touched[i]] != draft->words[draft->touched[i]])
            return 0;
    return 1;
}

static void clear(const Draft *draft)
{
    if (draft->whole)
        memset(draft->words, 0, (size_t)draft->width * 4);
    for (Py_ssize_t i = 0; !draft->whole && i < draft->count; i++)
        draft->words[draft->touched[i]] = 0;
}

/* Copy the parts of a row that hold a bit. */
static void copy_parts(const Rows *rows, uint32_t *to, const uint32_t *from, uint64_t parts)
{
    for (int part = 0; part < PARTS; part++) {
        Py_ssize_t begin = part_at(rows, part), end = part_at(rows, part + 1);
        if (parts >> part & 1)
            memcpy(to + begin, from + begin, (size_t)(end - begin) * 4);
    }
}

/* Return the row of the set in `draft`, which becomes a row if there is none. */
static Py_ssize_t row_of_draft(Rows *rows, const Draft *draft)
{
    Row made = measured(rows, draft);
    int32_t *bucket = &rows->buckets[made.digest * 0x9E3779B97F4A7C15u >> 32 & (BUCKETS - 1)];
    for (int32_t row = *bucket; row; row = rows->rows[row - 1].next) {
        const Row *other = &rows->rows[row - 1];
        if (other->digest == made.digest && other->used == made.used &&
            are_equal(row_at(rows, row - 1), draft)) {
            clear(draft);
            return row - 1;
        }
    }
    made.next = *bucket;
    rows->rows[rows->count] = made;
    if (draft->whole)
        copy_parts(rows, row_at(rows, rows->count), draft->words, made.parts);
    for (Py_ssize_t i = 0; !draft->whole && i < draft->count; i++)
        row_at(rows, rows->count)[draft->touched[i]] = draft->words[draft->touched[i]];
    clear(draft);
    *bucket = (int32_t)++rows->count;
    return rows->count - 1;
}

enum { NO_SET, PACKED, LISTED };

/* Return whether a set is given as packed bits (format "I" or "L"), or as tokens ("i" or "l"). */
static int kind_of_set(const Py_buffer *set)
{
    if (set->itemsize != 4 || !of_numbers(set, 4) || set->format == NULL || set->format[0] == 0 ||
        set->format[1] != 0 || strchr("ILil", set->format[0]) == NULL)
        return NO_SET;
    return set->format[0] == 'I' || set->format[0] == 'L' ? PACKED : LISTED;
}

/* Add a set, or take its tokens out; 0 with an exception if it is none. */
static int change(Draft *draft, PyObject *object, int out)
{
    Py_buffer set;
    if (PyObject_GetBuffer(object, &set, PyBUF_CONTIG_RO | PyBUF_FORMAT) < 0)
        return 0;
    int kind = kind_of_set(&set);
    int right = kind == LISTED || (kind == PACKED && set.len / 4 == draft->width && !out);
    if (right && kind == PACKED) {
        const uint32_t *bits = set.buf;
        for (Py_ssize_t i = 0; i < draft->width; i++)
            draft->words[i] |= bits[i];
        draft->whole = 1;
    }
    const int32_t *tokens = set.buf;
    for (Py_ssize_t i = 0; kind == LISTED && right && i < set.len / 4; i++) {
        int32_t token = tokens[i];
        right = token >= 0 && token >> 5 < draft->width;
        if (right && out)
            draft->words[token >> 5] &= ~((uint32_t)1 << (token & 31));
        else if (right)
            add_token(draft, token);
    }
    PyBuffer_Release(&set);
    if (!right)
        PyErr_SetString(PyExc_ValueError, "a set must be packed bits, or tokens of the vocabulary");
    return right;
}

/* Add each set of a list. Returns 0 with an exception if one is none. */
int add_each(Draft *draft, PyObject *sets)
{
    int right = 1;
    for (Py_ssize_t i = 0; right && i < PyList_Size(sets); i++) {
        PyObject *set = PyList_GetItem(sets, i);
        Py_INCREF(set);
        right = change(draft, set, 0);
        Py_DECREF(set);
    }
    return right;
}

/* Make a set: that of `sets` and of a walk, without tokens that are taken out. Returns the number
   of nodes that the walk has reached; -1 with an exception. */
static int64_t make_set(const Rows *rows, Draft *draft, PyObject *sets, PyObject *out, PyObject *walk)
{
    PyObject *trie, *begin, *states;
    int64_t reached = 0;
    const Module *state = PyType_GetModuleState(Py_TYPE((PyObject *)rows));

    if (!add_each(draft, sets))
        return -1;
    if (walk != Py_None) {
        if (!PyArg_ParseTuple(walk, "O!O!O!", state->trie, &trie, &PyList_Type, &begin,
                              state->states, &states))
            return -1;
        reached = read_below(trie, begin, states, draft);
    }
    if (reached >= 0 && out != Py_None && !change(draft, out, 1))
        return -1;
    return reached;
}

static PyObject *row_of(PyObject *self, PyObject *args)
{
    Rows *rows = (Rows *)self;
    PyObject *sets, *out, *walk;

    if (!PyArg_ParseTuple(args, "O!OO", &PyList_Type, &sets, &out, &walk))
        return NULL;
    if (walk != Py_None && !PyTuple_Check(walk)) {
        PyErr_SetString(PyExc_TypeError, "a walk must be a tuple or None");
        return NULL;
    }
    if (rows->busy) {
        PyErr_SetString(PyExc_RuntimeError, "another set of the table is being made");
        return NULL;
    }
    if (rows->count == rows->most)
        Py_RETURN_NONE;
    Draft draft = {rows->made, rows->touched, 0, rows->width, 0};
    rows->busy = 1;
    int64_t reached = make_set(rows, &draft, sets, out, walk);
    rows->busy = 0;
    if (reached < 0) {
        clear(&draft);
        return NULL;
    }
    return Py_BuildValue("nL", row_of_draft(rows, &draft), (long long)reached);
}

/* Return zeros for a table. */
static uint32_t *take_memory(Module *state, size_t bytes)
{
    for (int i = 0; i < SPARE; i++) {
        uint32_t *words = state->spare[i].words;
        if (words != NULL && state->spare[i].bytes == bytes) {
            memmove(&state->spare[i], &state->spare[i + 1],
                    (size_t)(SPARE - 1 - i) * sizeof state->spare[0]);
            state->spare[SPARE - 1].words = NULL;
            return words;
        }
    }
    return calloc(bytes, 1);
}

/* Let another table use the memory of one that ends: the pages of its first rows are in place. The
   memory that was given first is freed if there is too much. */
static void give_memory(Module *state, const Rows *rows)
{
    if (rows->count > SPARE_ROWS) {
        free(rows->words);
        return;
    }
    for (Py_ssize_t row = 0; row < rows->count; row++)
        for (int part = 0; part < PARTS; part++)
            if (rows->rows[row].parts >> part & 1)
                memset(row_at(rows, row) + part_at(rows, part), 0,
                       (size_t)(part_at(rows, part + 1) - part_at(rows, part)) * 4);
    free(state->spare[SPARE - 1].words);
    memmove(&state->spare[1], &state->spare[0], (SPARE - 1) * sizeof state->spare[0]);
    state->spare[0].words = rows->words;
    state->spare[0].bytes = bytes_of(rows);
}

void free_spare_memory(Module *state)
{
    for (int i = 0; i < SPARE; i++) {
        free(state->spare[i].words);
        state->spare[i].words = NULL;
    }
}

static Rows *new_rows(PyTypeObject *type, Py_ssize_t width, Py_ssize_t most)
{
    if (width < 1 || most < 1 || width > INT32_MAX / 32 || most > INT32_MAX / 2 ||
        most > PY_SSIZE_T_MAX / 4 / width) {
        PyErr_SetString(PyExc_ValueError, "a table must have words and rows, and fit into memory");
        return NULL;
    }
    Rows *rows = (Rows *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (rows == NULL)
        return NULL;
    rows->width = width, rows->most = most;
    while ((width - 1) >> rows->part >= PARTS)
        rows->part++;
    rows->rows = malloc((size_t)most * sizeof(Row));
    rows->made = calloc((size_t)width, 4);
    rows->touched = malloc((size_t)width * 4);
    if (rows->rows != NULL && rows->made != NULL && rows->touched != NULL)
        rows->words = take_memory(PyType_GetModuleState(type), bytes_of(rows));
    if (rows->words != NULL)
        return rows;
    Py_DECREF((PyObject *)rows);
    PyErr_NoMemory();
    return NULL;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *names)
{
    Py_ssize_t width, most;
    if (names != NULL && PyDict_Size(names)) {
        PyErr_SetString(PyExc_TypeError, "a table takes no arguments by name");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "nn", &width, &most))
        return NULL;
    return (PyObject *)new_rows(type, width, most);
}

/* Return a table of twice as many rows, with the same rows to begin with. */
static PyObject *grown(PyObject *self, PyObject *nothing)
{
    const Rows *rows = (const Rows *)self;
    (void)nothing;
    Rows *larger = new_rows(Py_TYPE(self), rows->width, 2 * rows->most);
    if (larger == NULL)
        return NULL;
    memcpy(larger->rows, rows->rows, (size_t)rows->count * sizeof(Row));
    memcpy(larger->buckets, rows->buckets, sizeof rows->buckets);
    larger->count = rows->count;
    for (Py_ssize_t row = 0; row < rows->count; row++)
        copy_parts(rows, row_at(larger, row), row_at(rows, row), rows->rows[row].parts);
    return (PyObject *)larger;
}

static void end(PyObject *self)
{
    Rows *rows = (Rows *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (rows->words != NULL)
        give_memory(PyType_GetModuleState(type), rows);
    free(rows->rows);
    free(rows->made);
    free(rows->touched);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static int export(PyObject *self, Py_buffer *view, int flags)
{
    const Rows *rows = (const Rows *)self;
    return PyBuffer_FillInfo(view, self, rows->words, (Py_ssize_t)bytes_of(rows), 0, flags);
}

static PyObject *count(PyObject *self, void *nothing)
{
    (void)nothing;
    return PyLong_FromSsize_t(((const Rows *)self)->count);
}

static PyObject *memory(PyObject *self, void *nothing)
{
    (void)nothing;
    return PyMemoryView_FromObject(self);
}

static PyMethodDef methods[] = {
    {"grown", grown, METH_NOARGS, "Return a larger table with the same rows; see _rows.c."},
    {"row_of", row_of, METH_VARARGS, "Return the row of a set; see _rows.c."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"count", count, NULL, "The number of rows in use.", NULL},
    {"memory", memory, NULL, "The packed bits of all rows, used or not.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, make}, {Py_tp_dealloc, end}, {Py_tp_methods, methods},
    {Py_tp_getset, properties}, {Py_bf_getbuffer, export}, {0, NULL},
};

static PyType_Spec spec = {"dlm.grammar._walk.Rows", sizeof(Rows), 0, Py_TPFLAGS_DEFAULT, slots};

/* Return the type of tables. */
PyTypeObject *make_rows_type(PyObject *module)
{
    make_keys();
    return (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
}
