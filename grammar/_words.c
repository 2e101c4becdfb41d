/* Make the minimal automaton of a list of words, or of all texts but these.

   `dlm.grammar.regex.words` does the same in Python where this is not built. A test holds both
   equal. */

#include "_parser.h"

#include <string.h>

enum {
    LAST_CHARACTER = 0x10FFFF,
    PASSED = 8,            /* slots of others for a state, which are not counted */
    PASSED_BY_STEP = 256,  /* more of them for a step */
};
static const uint32_t every[2][2] = {{0, 0xD7FF}, {0xE000, LAST_CHARACTER}};

typedef struct {
    uint32_t character;
    int32_t to;
} Step;

typedef struct {
    int32_t first, count;  /* its steps */
    int ends;              /* a word ends here */
} Node;

/* A state that is not complete: its steps are those from `first` on, up to the next state's. */
typedef struct {
    int32_t first;
    int ends;
} Begun;

typedef struct {
    uint32_t low, high;
    int32_t to;
} Edge;

typedef struct {
    Step *steps, *begun_steps;   /* of the complete states, and of the others */
    Node *nodes;
    Begun *begun;                /* the states along the last word, the first one among them */
    int32_t *slots;              /* 1 + a complete state, by hash */
    int32_t *numbers, *order;    /* the numbers of states, and states by their numbers */
    Edge *edges;                 /* of one state */
    int32_t step_count, step_room, begun_step_count, begun_step_room, node_count, node_room;
    int32_t depth, begun_room, slots_room, reached, edge_count, edge_room;
    int64_t passed;              /* slots of other states, on the way to one's own */
    PyObject *ends_of_ranges[3]; /* of `every`, without 0 */
} Words;

static int add_step(Step **steps, int32_t *count, int32_t *room, Step step)
{
    Step *grown = with_room(*steps, *count, room, sizeof step);
    if (grown == NULL)
        return 0;
    *steps = grown, grown[(*count)++] = step;
    return 1;
}

static uint64_t mixed(uint64_t hash)
{
    hash *= 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

/* Return the hash of a state. It depends on an address, which nobody knows beforehand: else clients
   could choose words of which all states have the same. */
static uint32_t hash_of_node(const Words *words, const Step *steps, int32_t count, int ends)
{
    uint64_t hash = mixed((uint64_t)(uintptr_t)words ^ ((uint64_t)count << 1 | (uint64_t)ends));
    for (int32_t i = 0; i < count; i++)
        hash = mixed(hash ^ steps[i].character ^ (uint64_t)(uint32_t)steps[i].to << 32);
    return (uint32_t)(hash ^ hash >> 32);
}

/* Add a state with the last `count` of the steps that are begun. Returns it, or -1 with an
   exception. */
static int32_t add_node(Words *words, int32_t count, int ends)
{
    const Step *steps = words->begun_steps + words->begun_step_count - count;
    Node *grown = with_room(words->nodes, words->node_count, &words->node_room, sizeof *grown);
    if (grown == NULL)
        return -1;
    words->nodes = grown;
    grown[words->node_count] = (Node){words->step_count, count, ends};
    for (int32_t i = 0; i < count; i++)
        if (!add_step(&words->steps, &words->step_count, &words->step_room, steps[i]))
            return -1;
    return words->node_count++;
}

static int32_t *slot_of(Words *words, const Step *steps, int32_t count, int ends)
{
    uint32_t mask = (uint32_t)words->slots_room - 1, slot = hash_of_node(words, steps, count, ends) & mask;
    for (; words->slots[slot]; slot = (slot + 1) & mask, words->passed++) {
        const Node *node = &words->nodes[words->slots[slot] - 1];
        if (node->count == count && node->ends == ends &&
            (count == 0 || memcmp(words->steps + node->first, steps, (size_t)count * sizeof *steps) == 0))
            break;
    }
    return &words->slots[slot];
}

static int make_slots(Words *words)
{
    int32_t *before = words->slots, room = words->slots_room ? 2 * words->slots_room : 64;
    int32_t *slots = PyMem_Calloc((size_t)room, sizeof *slots);
    if (slots == NULL)
        return PyErr_NoMemory() != NULL;
    words->slots = slots, words->slots_room = room;
    for (int32_t i = 0; i < words->node_count; i++) {
        const Node *node = &words->nodes[i];
        *slot_of(words, words->steps + node->first, node->count, node->ends) = 1 + i;
    }
    PyMem_Free(before);
    return 1;
}

/* Complete all states after the first `length` characters of the last word, `text`: each becomes
   one that is complete and has the same endings. Returns 0 with an exception. */
static int complete(Words *words, const Py_UCS4 *text, int32_t length)
{
    for (; words->depth > length; words->depth--) {
        Begun state = words->begun[words->depth];
        int32_t count = words->begun_step_count - state.first;
        if (2 * words->node_count >= words->slots_room && !make_slots(words))
            return 0;
        int32_t *slot = slot_of(words, words->begun_steps + state.first, count, state.ends);
        if (*slot == 0) {
            int32_t added = add_node(words, count, state.ends);
            if (added < 0)
                return 0;
            *slot = 1 + added;
        }
        words->begun_step_count = state.first;
        Step step = {text[words->depth - 1], *slot - 1};
        if (!add_step(&words->begun_steps, &words->begun_step_count, &words->begun_step_room, step))
            return 0;
    }
    return 1;
}

/* Count steps of a construction before they are taken. Returns 0 with an exception. */
static int count_steps(PyObject *spend, int32_t steps)
{
    PyObject *nothing = PyObject_CallFunction(spend, "i", steps);
    Py_XDECREF(nothing);
    return nothing != NULL;
}

/* Read a word; `last` is the one before it, of `words->depth` characters. Returns 0 with an
   exception. */
static int read_word(Words *words, const Py_UCS4 *last, const Py_UCS4 *text, int32_t length,
                     PyObject *spend)
{
    int32_t common = 0;
    while (common < words->depth && common < length && last[common] == text[common])
        common++;
    if (!complete(words, last, common) || !count_steps(spend, length - common))
        return 0;
    while (words->depth < length) {
        Begun *grown = with_room(words->begun, words->depth + 1, &words->begun_room, sizeof *grown);
        if (grown == NULL)
            return 0;
        words->begun = grown;
        grown[++words->depth] = (Begun){words->begun_step_count, 0};
    }
    words->begun[length].ends = 1;
    return 1;
}

static int32_t number_of(Words *words, int32_t node)
{
    if (words->numbers[node] < 0) {
        words->numbers[node] = words->reached;
        words->order[words->reached++] = node;
    }
    return words->numbers[node];
}

static int add_edge(Words *words, uint32_t low, uint32_t high, int32_t to)
{
    Edge *grown = with_room(words->edges, words->edge_count, &words->edge_room, sizeof *grown);
    if (grown == NULL)
        return 0;
    words->edges = grown, grown[words->edge_count++] = (Edge){low, high, to};
    return 1;
}

/* Add edges from `low` to `high` to the state `dead`. Returns 0 with an exception. */
static int add_between(Words *words, uint32_t low, uint32_t high, int32_t dead)
{
    for (int i = 0; i < 2; i++) {
        uint32_t begin = low > every[i][0] ? low : every[i][0], end = high < every[i][1] ? high : every[i][1];
        if (begin <= end && !add_edge(words, begin, end, number_of(words, dead)))
            return 0;
    }
    return 1;
}

/* Write the edges of a state; other characters lead to `dead`, unless that is negative. Returns 0
   with an exception. */
static int write_edges(Words *words, const Node *node, int32_t dead)
{
    uint32_t begin = 0;  /* of the characters after those that are read */
    words->edge_count = 0;
    for (int32_t i = 0; i < node->count; i++) {
        Step step = words->steps[node->first + i];
        uint32_t low = step.character;
        if (dead >= 0 && begin < low && !add_between(words, begin, low - 1, dead))
            return 0;
        int32_t to = number_of(words, step.to);
        if (words->edge_count) {
            Edge before = words->edges[words->edge_count - 1];
            if (before.to == to && before.high + 1 == low)
                low = before.low, words->edge_count--;
        }
        if (!add_edge(words, low, step.character, to))
            return 0;
        begin = step.character + 1;
    }
    return dead < 0 || begin > LAST_CHARACTER || add_between(words, begin, LAST_CHARACTER, dead);
}

static PyObject *character_object(const Words *words, uint32_t character)
{
    for (int i = 0; i < 3; i++)
        if (character == every[(i + 1) / 2][(i + 1) % 2])
            return Py_NewRef(words->ends_of_ranges[i]);
    return PyLong_FromUnsignedLong(character);
}

static PyObject *edges_object(const Words *words)
{
    PyObject *edges = PyTuple_New(words->edge_count);
    for (int32_t i = 0; edges != NULL && i < words->edge_count; i++) {
        const Edge *edge = &words->edges[i];
        PyObject *parts[3] = {character_object(words, edge->low), character_object(words, edge->high),
                              PyLong_FromLong(edge->to)};
        PyObject *made = NULL;
        if (parts[0] && parts[1] && parts[2])
            made = PyTuple_Pack(3, parts[0], parts[1], parts[2]);
        for (int j = 0; j < 3; j++)
            Py_XDECREF(parts[j]);
        if (made == NULL || PyTuple_SetItem(edges, i, made) < 0)
            Py_CLEAR(edges);
    }
    return edges;
}

/* Return the edges and the final states: of the texts, or of all `others`. */
static PyObject *automaton(Words *words, int others)
{
    int32_t start = add_node(words, words->begun_step_count, words->begun[0].ends), dead = start;
    if (start >= 0 && (words->nodes[start].count || words->nodes[start].ends))
        dead = add_node(words, 0, 0);
    if (start < 0 || dead < 0)
        return NULL;
    size_t size = (size_t)words->node_count * sizeof *words->numbers;
    words->numbers = PyMem_Malloc(size), words->order = PyMem_Malloc(size);
    if (words->numbers == NULL || words->order == NULL)
        return PyErr_NoMemory();
    memset(words->numbers, -1, size);
    for (int i = 0; i < 3; i++)
        if ((words->ends_of_ranges[i] = PyLong_FromUnsignedLong(every[(i + 1) / 2][(i + 1) % 2])) == NULL)
            return NULL;
    PyObject *edges = PyList_New(0), *final = PyList_New(0), *made = NULL;
    int right = edges != NULL && final != NULL;
    number_of(words, start);
    for (int32_t i = 0; right && i < words->reached; i++) {
        const Node *node = &words->nodes[words->order[i]];
        PyObject *row = write_edges(words, node, others ? dead : -1) ? edges_object(words) : NULL;
        right = row != NULL && PyList_Append(edges, row) == 0;
        Py_XDECREF(row);
        if (right && node->ends != others) {
            PyObject *number = PyLong_FromLong(i);
            right = number != NULL && PyList_Append(final, number) == 0;
            Py_XDECREF(number);
        }
    }
    PyObject *rows = right ? PyList_AsTuple(edges) : NULL;
    PyObject *ends = right ? PyFrozenSet_New(final) : NULL;
    if (rows != NULL && ends != NULL)
        made = PyTuple_Pack(2, rows, ends);
    Py_XDECREF(rows), Py_XDECREF(ends), Py_XDECREF(edges), Py_XDECREF(final);
    return made;
}

static void free_words(Words *words)
{
    PyMem_Free(words->steps), PyMem_Free(words->begun_steps), PyMem_Free(words->nodes);
    PyMem_Free(words->begun), PyMem_Free(words->slots), PyMem_Free(words->numbers);
    PyMem_Free(words->order), PyMem_Free(words->edges);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(words->ends_of_ranges[i]);
}

/* automaton_of_words(texts: list[str], others: bool, spend) -> (edges, final)

   `texts` are sorted, and have no lone surrogates. The edges and the final states are those of the
   minimal automaton of the texts, or of all others; its states are numbered breadth-first.
   `spend` is called for each text, before its states are made, with the number of its characters
   that the text before it does not share; and at the end if many states were looked for in slots of
   others. What it raises ends the construction. */
PyObject *automaton_of_words(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *texts, *spend, *made = NULL;
    int others;
    Py_ssize_t read = 0;
    Words words = {0};
    Py_UCS4 *last = NULL;
    if (!PyArg_ParseTuple(arguments, "O!pO", &PyList_Type, &texts, &others, &spend))
        return NULL;
    words.begun = with_room(NULL, 0, &words.begun_room, sizeof *words.begun);
    int right = words.begun != NULL;
    if (right)
        words.begun[0] = (Begun){0, 0};
    for (Py_ssize_t i = 0; right && i < PyList_Size(texts); i++) {
        PyObject *object = PyList_GetItem(texts, i);
        Py_ssize_t length = PyUnicode_Check(object) ? PyUnicode_GetLength(object) : -1;
        if (length < 0 || length > INT32_MAX / 4 - read) {
            PyErr_SetString(PyExc_TypeError, "it takes texts, of at most half a billion characters");
            right = 0;
            break;
        }
        Py_UCS4 *text = PyUnicode_AsUCS4Copy(object);
        right = text != NULL && read_word(&words, last, text, (int32_t)length, spend);
        read += length;
        PyMem_Free(last);
        last = text;
    }
    right = right && complete(&words, last, 0);
    int64_t beyond = words.passed - PASSED * (int64_t)words.node_count;
    if (right && beyond > 0)
        right = count_steps(spend, (int32_t)(beyond / PASSED_BY_STEP + 1));
    if (right)
        made = automaton(&words, others);
    PyMem_Free(last);
    free_words(&words);
    return made;
}
