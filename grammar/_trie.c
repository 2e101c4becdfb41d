/* Read a trie of tokens from nodes on: by the states of a parser, or along one text.

   `dlm.grammar.masks.walks` does the same in numpy where this is not built. A test holds both
   equal. The nodes are numbered level by level: the children of a node are side by side. */

#include "_parser.h"

#include <string.h>

enum { BYTE, FIRST, CHILDREN, TOKEN_FIRST, TOKEN_COUNT, TOKENS, ARRAYS };

static const Py_ssize_t item_size[ARRAYS] = {1, 4, 4, 4, 4, 4};

/* The arrays of a trie, which are checked when it is made and must not change afterwards. */
typedef struct {
    PyObject_HEAD
    Py_buffer arrays[ARRAYS];   /* what the pointers below point to */
    const uint8_t *byte;        /* the last byte of each node's text */
    const int32_t *first;       /* each node's first child */
    const int32_t *children;    /* the number of each node's children */
    const int32_t *token_first; /* the index in `tokens` of each node's first token */
    const int32_t *token_count; /* the number of each node's tokens */
    const int32_t *tokens;
    int32_t nodes, most_token, levels;
} Trie;

/* Whether the arrays have the lengths and the numbers that a walk relies on. */
static int fit(Trie *trie)
{
    const Py_buffer *arrays = trie->arrays;
    Py_ssize_t nodes = arrays[BYTE].len, tokens = arrays[TOKENS].len / 4;
    for (int i = 0; i < ARRAYS; i++)
        if (!of_numbers(&arrays[i], item_size[i]) ||
            (i != TOKENS && arrays[i].len / item_size[i] != nodes))
            return 0;
    if (nodes < 1 || nodes > INT32_MAX || trie->levels < 1)
        return 0;
    trie->byte = arrays[BYTE].buf, trie->first = arrays[FIRST].buf;
    trie->children = arrays[CHILDREN].buf, trie->token_first = arrays[TOKEN_FIRST].buf;
    trie->token_count = arrays[TOKEN_COUNT].buf, trie->tokens = arrays[TOKENS].buf;
    trie->nodes = (int32_t)nodes, trie->most_token = -1;
    for (Py_ssize_t i = 0; i < nodes; i++) {
        int64_t first = trie->first[i], token = trie->token_first[i];
        if (trie->children[i] < 0 || first <= i || first + trie->children[i] > nodes)
            return 0;
        if (trie->token_count[i] < 0 || token < 0 || token + trie->token_count[i] > tokens)
            return 0;
    }
    for (Py_ssize_t i = 0; i < tokens; i++) {
        if (trie->tokens[i] < 0)
            return 0;
        if (trie->tokens[i] > trie->most_token)
            trie->most_token = trie->tokens[i];
    }
    return 1;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *names)
{
    Py_buffer a[ARRAYS];
    int levels;

    if (names != NULL && PyDict_Size(names)) {
        PyErr_SetString(PyExc_TypeError, "a trie takes no arguments by name");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*i", &a[BYTE], &a[FIRST], &a[CHILDREN],
                          &a[TOKEN_FIRST], &a[TOKEN_COUNT], &a[TOKENS], &levels))
        return NULL;
    Trie *trie = (Trie *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (trie == NULL) {
        for (int i = 0; i < ARRAYS; i++)
            PyBuffer_Release(&a[i]);
        return NULL;
    }
    memcpy(trie->arrays, a, sizeof a);
    trie->levels = levels;
    if (fit(trie))
        return (PyObject *)trie;
    PyErr_SetString(PyExc_ValueError, "arrays of a trie must fit together");
    Py_DECREF(trie);
    return NULL;
}

static void end(PyObject *self)
{
    Trie *trie = (Trie *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < ARRAYS; i++)
        PyBuffer_Release(&trie->arrays[i]);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Read one of the nodes in a buffer, which may have changed since another was read. Returns 0 with
   an exception if it is not within the trie. */
static int read_node(const Trie *trie, const Py_buffer *nodes, Py_ssize_t i, int32_t *node)
{
    int right = of_numbers(nodes, 4);
    if (right)
        *node = ((const int32_t *)nodes->buf)[i];
    if (right && *node >= 0 && *node < trie->nodes)
        return 1;
    PyErr_SetString(PyExc_ValueError, "nodes of a walk must be within the trie");
    return 0;
}

typedef struct {
    Cell *cell;              /* which the frame owns */
    int32_t child, end;      /* the children that are still to be read */
} Frame;

/* What a walk adds to, and what it needs. */
typedef struct {
    const Trie *trie;
    States *states;
    Work work;
    Frame *frames;
    Draft *draft;
    int64_t reached;         /* nodes */
} Walk;

/* Find the state after a child, of which only that there is one is told if it has no children. Returns
   1; 0 if there is none; -1 with an exception. */
static int go_on(Walk *walk, Cell *cell, int32_t child, Cell **to)
{
    uint8_t byte = walk->trie->byte[child];
    *to = NULL;
    if (!walk->trie->children[child])
        return takes(walk->states, cell, byte, &walk->work);
    return cell_after(walk->states, cell, byte, &walk->work, to) ? *to != NULL : -1;
}

/* Read the nodes below a node from a state on. Returns 0 with an exception. */
static int walk_below(Walk *walk, int32_t node, Cell *cell)
{
    const Trie *trie = walk->trie;
    int32_t depth = 0;

    walk->frames[0] = (Frame){(Cell *)Py_NewRef((PyObject *)cell), trie->first[node],
                              trie->first[node] + trie->children[node]};
    while (depth >= 0) {
        Frame *frame = &walk->frames[depth];
        if (frame->child == frame->end) {
            leave_cell(frame->cell);
            depth--;
            continue;
        }
        int32_t child = frame->child++;
        Cell *to;
        int taken = go_on(walk, frame->cell, child, &to);
        if (taken > 0 && depth + 1 == trie->levels) {
            PyErr_SetString(PyExc_ValueError, "arrays of a trie must fit together");
            leave_cell(to);
            taken = -1;
        }
        if (taken < 0) {
            while (depth >= 0)
                leave_cell(walk->frames[depth--].cell);
            return 0;
        }
        if (!taken)
            continue;
        walk->reached++;
        const int32_t *token = trie->tokens + trie->token_first[child];
        for (int32_t i = 0; i < trie->token_count[child]; i++)
            add_token(walk->draft, token[i]);
        if (to != NULL)
            walk->frames[++depth] = (Frame){to, trie->first[child],
                                            trie->first[child] + trie->children[child]};
    }
    return 1;
}

/* Read below nodes from a state on. Returns 0 with an exception. */
static int walk_from(Walk *walk, PyObject *nodes, PyObject *state)
{
    Py_buffer b;
    int32_t node;
    Cell *cell = cell_of_state(walk->states, state);
    if (cell == NULL || PyObject_GetBuffer(nodes, &b, PyBUF_CONTIG_RO) < 0) {
        leave_cell(cell);
        return 0;
    }
    int right = 1;
    for (Py_ssize_t i = 0; right && i < (b.len + 3) / 4; i++)
        right = read_node(walk->trie, &b, i, &node) && walk_below(walk, node, cell);
    PyBuffer_Release(&b);
    leave_cell(cell);
    return right;
}

/* Read below nodes from states on; add the tokens reached to `draft`. `begin` is a list of pairs:
   nodes, and the state there. Returns the number of nodes reached; -1 with an exception. */
int64_t read_below(PyObject *self, PyObject *begin, PyObject *states, Draft *draft)
{
    const Trie *trie = (const Trie *)self;
    Walk walk = {.trie = trie, .states = (States *)states, .draft = draft};
    PyObject *nodes, *state;

    if (trie->most_token >> 5 >= draft->width) {
        PyErr_SetString(PyExc_ValueError, "packed bits must have a place for each token");
        return -1;
    }
    walk.frames = PyMem_Malloc((size_t)trie->levels * sizeof(Frame));
    if (walk.frames == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int right = begin_work(walk.states, &walk.work);
    for (Py_ssize_t i = 0; right && i < PyList_Size(begin); i++) {
        PyObject *pair = PyList_GetItem(begin, i);
        Py_INCREF(pair);
        right = PyTuple_Check(pair) && PyArg_ParseTuple(pair, "OO", &nodes, &state) &&
                walk_from(&walk, nodes, state);
        if (!right && !PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a walk must begin with pairs of nodes and a state");
        Py_DECREF(pair);
    }
    PyMem_Free(walk.frames);
    return end_work(walk.states, &walk.work) && right ? walk.reached : -1;
}

/* A list of numbers that grows. */
typedef struct {
    int32_t *numbers;
    Py_ssize_t count, room;
} List;

/* Add numbers to a list. Returns 0 with an exception if there is no memory. */
static int add(List *list, const int32_t *numbers, Py_ssize_t count)
{
    if (list->count + count > list->room) {
        Py_ssize_t room = 2 * list->room + count + 16;
        int32_t *grown = PyMem_Realloc(list->numbers, (size_t)room * 4);
        if (grown == NULL) {
            PyErr_NoMemory();
            return 0;
        }
        list->numbers = grown, list->room = room;
    }
    if (count)
        memcpy(list->numbers + list->count, numbers, (size_t)count * 4);
    list->count += count;
    return 1;
}

/* Search the trie for a text below a node. Lists the tokens that spell a part of it, and its end if
   it is reached and a token continues there. Returns 0 with an exception if there is no memory. */
static int spell_below(const Trie *trie, int32_t node, const Py_buffer *text, List *tokens, List *ends)
{
    const uint8_t *bytes = text->buf;
    for (Py_ssize_t i = 0; i < text->len; i++) {
        const uint8_t *children = trie->byte + trie->first[node], *child = NULL;
        if (trie->children[node])
            child = memchr(children, bytes[i], (size_t)trie->children[node]);
        if (child == NULL)
            return 1;
        node = trie->first[node] + (int32_t)(child - children);
        if (!add(tokens, trie->tokens + trie->token_first[node], trie->token_count[node]))
            return 0;
    }
    return trie->children[node] ? add(ends, &node, 1) : 1;
}

static PyObject *spell(PyObject *self, PyObject *args)
{
    const Trie *trie = (const Trie *)self;
    Py_buffer nodes, text;
    List tokens = {NULL, 0, 0}, ends = {NULL, 0, 0};
    PyObject *pair = NULL;
    int32_t node;
    int right = 1;

    if (!PyArg_ParseTuple(args, "y*y*", &nodes, &text))
        return NULL;
    for (Py_ssize_t i = 0; right && i < (nodes.len + 3) / 4; i++)
        right = read_node(trie, &nodes, i, &node) && spell_below(trie, node, &text, &tokens, &ends);
    if (right)
        pair = Py_BuildValue("y#y#", tokens.numbers ? (char *)tokens.numbers : "", tokens.count * 4,
                             ends.numbers ? (char *)ends.numbers : "", ends.count * 4);
    PyMem_Free(tokens.numbers);
    PyMem_Free(ends.numbers);
    PyBuffer_Release(&nodes);
    PyBuffer_Release(&text);
    return pair;
}

static PyMethodDef methods[] = {
    {"spell", spell, METH_VARARGS, "Search for a text below nodes; see _trie.c."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, make}, {Py_tp_dealloc, end}, {Py_tp_methods, methods}, {0, NULL},
};

static PyType_Spec spec = {"dlm.grammar._walk.Trie", sizeof(Trie), 0, Py_TPFLAGS_DEFAULT, slots};

/* Return the type of tries. */
PyTypeObject *make_trie_type(PyObject *module)
{
    return (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
}
