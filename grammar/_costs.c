/* Find the fewest bytes from the states of a network to the ends of their rules.

   `dlm.grammar.parse.network` does the same in Python where this is not built. A test holds both
   equal. */

#include "_parser.h"

#include <string.h>

enum { NONE = -1 };   /* no state, no way, or a cost that is not known */
enum { TERMINAL, TOKEN, RULE, EPSILON, GROUP, KINDS };
static const Py_ssize_t fields[KINDS] = {4, 2, 5, 1, 2}, field_of_to[KINDS] = {1, 1, 1, 0, 1};

/* An edge, listed for a state whose cost it needs. */
typedef struct {
    PyObject *edge;
    int64_t size;            /* its bytes; NONE: they depend on its rule or group */
    int64_t low;             /* how often it reads its rule */
    int32_t before, to;      /* states */
    int32_t round;           /* the state in which its rule begins; NONE: it reads a group */
} Way;

/* A way that is listed for a state; or the part of its group that begins there. */
typedef struct {
    PyObject *part;          /* its index, or None for the separator; NULL: it is listed itself */
    int32_t way, next;       /* the next one that is listed for the same state */
} Entry;

typedef struct {
    int64_t cost, order;     /* ties are broken by the order */
    int32_t state, way;
} Waiting;

typedef struct {
    Way *ways;
    Entry *entries;
    Waiting *heap;
    int64_t *costs, *sizes, order;            /* costs by state; sizes of terminals by number */
    int32_t *first[2], *last[2];              /* by state: entries of ways, and those of parts */
    int32_t way_count, way_room, entry_count, entry_room, heap_count, heap_room, states, terminals;
    int too_large;                            /* a cost takes more than 62 bits */
    PyObject *kinds[KINDS], *start, *read, *parts, *learn, *group_cost;
} Costs;

/* Read a number that is not negative. Returns NONE with an exception; NONE without one if it is too
   large, which is noted. */
static int64_t read_number(Costs *costs, PyObject *object)
{
    int overflow = 0;
    long long number = object == NULL ? NONE : PyLong_AsLongLongAndOverflow(object, &overflow);
    if (object != NULL && !PyErr_Occurred()) {
        if (overflow > 0 || number >> 61 > 0)
            costs->too_large = 1;
        else if (overflow == 0 && number >= 0)
            return number;
        else
            PyErr_SetString(PyExc_ValueError, "numbers of a network must not be negative");
    }
    return NONE;
}

/* Read a number below `end`. Returns NONE with an exception if it is none. */
static int32_t read_index(Costs *costs, PyObject *object, Py_ssize_t end)
{
    int64_t number = read_number(costs, object);
    if (number >= 0 && number < end)
        return (int32_t)number;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a number of a network must be that of a state or terminal");
    return NONE;
}

/* Call a function with one argument. Returns what it returns as a number, or NONE for None; or, with
   an exception or a number that is too large, NONE. */
static int64_t number_from(Costs *costs, PyObject *function, PyObject *argument)
{
    PyObject *result = PyObject_CallFunctionObjArgs(function, argument, NULL);
    int64_t number = result == Py_None ? NONE : read_number(costs, result);
    Py_XDECREF(result);
    return number;
}

static int list_for(Costs *costs, int32_t state, int32_t way, PyObject *part)
{
    Entry *grown = with_room(costs->entries, costs->entry_count, &costs->entry_room, sizeof *grown);
    if (grown == NULL)
        return 0;
    costs->entries = grown;
    Py_XINCREF(part);
    grown[costs->entry_count] = (Entry){part, way, NONE};
    int list = part != NULL;
    if (costs->first[list][state] == NONE)
        costs->first[list][state] = costs->entry_count;
    else
        grown[costs->last[list][state]].next = costs->entry_count;
    costs->last[list][state] = costs->entry_count++;
    return 1;
}

/* Return the bytes of a terminal's edge; NONE: no text fits it, or an exception. */
static int64_t size_of_terminal(Costs *costs, PyObject *edge)
{
    PyObject *bound = PyTuple_GetItem(edge, 2);
    int32_t number = read_index(costs, PyTuple_GetItem(edge, 0), costs->terminals);
    if (number == NONE)
        return NONE;
    if (PyTuple_GetItem(edge, 3) != Py_None || PyObject_IsTrue(bound))
        return number_from(costs, costs->read, edge);
    if (costs->sizes[number] < NONE)
        costs->sizes[number] = number_from(costs, costs->read, edge);
    return costs->sizes[number];
}

/* List the parts of a group for the states in which they begin. */
static int list_parts(Costs *costs, int32_t way)
{
    PyObject *parts = PyObject_CallFunctionObjArgs(costs->parts, costs->ways[way].edge, NULL);
    int right = parts != NULL && PyList_Check(parts);
    for (Py_ssize_t i = 0; right && i < PyList_Size(parts); i++) {
        PyObject *pair = PyList_GetItem(parts, i);
        int32_t state = NONE;
        if ((right = is_tuple(pair, 2)))
            state = read_index(costs, PyTuple_GetItem(pair, 0), costs->states);
        right = state != NONE && list_for(costs, state, way, PyTuple_GetItem(pair, 1));
    }
    if (!right && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "parts of a group must be a list of pairs");
    Py_XDECREF(parts);
    return right;
}

/* List an edge for the states whose costs it needs. */
static int add_edge(Costs *costs, int32_t state, PyObject *edge)
{
    int kind = 0;
    while (kind < KINDS && (PyObject *)Py_TYPE(edge) != costs->kinds[kind])
        kind++;
    if (kind == KINDS || !is_tuple(edge, fields[kind])) {
        PyErr_SetString(PyExc_TypeError, "an edge must be of one of the five classes");
        return 0;
    }
    Way way = {edge, kind == TOKEN, 0, state, NONE, NONE};
    if ((way.to = read_index(costs, PyTuple_GetItem(edge, field_of_to[kind]), costs->states)) == NONE)
        return 0;
    if (kind == TERMINAL && (way.size = size_of_terminal(costs, edge)) == NONE)
        return !PyErr_Occurred();
    if (kind == RULE) {
        way.low = read_number(costs, PyTuple_GetItem(edge, 2));
        int32_t rule = way.low == NONE ? NONE
            : read_index(costs, PyTuple_GetItem(edge, 0), PyList_Size(costs->start));
        if (rule == NONE)
            return !PyErr_Occurred();
        way.round = read_index(costs, PyList_GetItem(costs->start, rule), costs->states);
        if (way.round == NONE)
            return 0;
    }
    if (kind == GROUP || way.low)
        way.size = NONE;
    Way *grown = with_room(costs->ways, costs->way_count, &costs->way_room, sizeof *grown);
    if (grown == NULL)
        return 0;
    costs->ways = grown;
    Py_INCREF(edge);
    int32_t number = costs->way_count++;
    grown[number] = way;
    if (kind == GROUP && !list_parts(costs, number))
        return 0;
    if (way.low && !list_for(costs, way.round, number, NULL))
        return 0;
    return list_for(costs, way.to, number, NULL);
}

static int add_edges(Costs *costs, PyObject *edges)
{
    for (int32_t state = 0; state < costs->states && !costs->too_large; state++) {
        PyObject *row = PyList_GetItem(edges, state);
        if (row == NULL || !PyList_Check(row)) {
            PyErr_SetString(PyExc_TypeError, "the edges of a state must be a list");
            return 0;
        }
        Py_INCREF(row);
        int right = 1;
        for (Py_ssize_t i = 0; right && i < PyList_Size(row); i++) {
            PyObject *edge = PyList_GetItem(row, i);
            Py_INCREF(edge);
            right = add_edge(costs, state, edge);
            Py_DECREF(edge);
        }
        Py_DECREF(row);
        if (!right)
            return 0;
    }
    return 1;
}

static int before(const Waiting *a, const Waiting *b)
{
    return a->cost != b->cost ? a->cost < b->cost : a->order < b->order;
}

static int push(Costs *costs, int64_t cost, int32_t state, int32_t way)
{
    Waiting *heap = with_room(costs->heap, costs->heap_count, &costs->heap_room, sizeof *heap);
    if (heap == NULL)
        return 0;
    costs->heap = heap;
    Waiting new = {cost, costs->order++, state, way};
    int32_t at = costs->heap_count++;
    for (; at && before(&new, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = new;
    return 1;
}

static Waiting pop(Costs *costs)
{
    Waiting *heap = costs->heap, least = heap[0], last = heap[--costs->heap_count];
    int32_t at = 0, child;
    while ((child = 2 * at + 1) < costs->heap_count) {
        child += child + 1 < costs->heap_count && before(&heap[child + 1], &heap[child]);
        if (!before(&heap[child], &last))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return least;
}

/* Wait for the state before a way, if its cost is not known and that of the way is. */
static int offer(Costs *costs, int32_t number)
{
    const Way *way = &costs->ways[number];
    int64_t cost = costs->costs[way->to], size = way->size;
    if (costs->costs[way->before] != NONE || cost == NONE)
        return 1;
    if (size == NONE && way->round == NONE) {
        size = number_from(costs, costs->group_cost, way->edge);
        way = &costs->ways[number];
    } else if (size == NONE) {
        size = costs->costs[way->round];
        if (size != NONE && __builtin_mul_overflow(size, way->low, &size))
            costs->too_large = 1;
    }
    if (size == NONE || costs->too_large)
        return !PyErr_Occurred();
    if (__builtin_add_overflow(cost, size, &cost) || cost >> 61 > 0) {
        costs->too_large = 1;
        return 1;
    }
    return push(costs, cost, way->before, number);
}

/* Set the cost of a state, and the way that has it. */
static int set(const Costs *costs, const Waiting *least, PyObject *known, PyObject *best)
{
    PyObject *state = PyLong_FromLong(least->state), *cost = PyLong_FromLongLong(least->cost);
    int right = state != NULL && cost != NULL && PyDict_SetItem(known, state, cost) == 0;
    if (right && least->way != NONE)
        right = PyDict_SetItem(best, state, costs->ways[least->way].edge) == 0;
    Py_XDECREF(state), Py_XDECREF(cost);
    return right;
}

/* Tell the groups of which a part, or the separator, begins in a state what it costs. */
static int tell(const Costs *costs, int32_t state, int64_t cost)
{
    int32_t i = costs->first[1][state];
    PyObject *number = i == NONE ? NULL : PyLong_FromLongLong(cost);
    int right = i == NONE || number != NULL;
    for (; right && i != NONE; i = costs->entries[i].next) {
        const Entry *entry = &costs->entries[i];
        PyObject *none = PyObject_CallFunctionObjArgs(costs->learn, costs->ways[entry->way].edge,
                                                      entry->part, number, NULL);
        right = none != NULL;
        Py_XDECREF(none);
    }
    Py_XDECREF(number);
    return right;
}

static int find_costs(Costs *costs, PyObject *final, PyObject *known, PyObject *best)
{
    for (Py_ssize_t i = 0; i < PyList_Size(final); i++) {
        int32_t state = read_index(costs, PyList_GetItem(final, i), costs->states);
        if (state == NONE || !push(costs, 0, state, NONE))
            return 0;
    }
    while (costs->heap_count && !costs->too_large) {
        Waiting least = pop(costs);
        if (costs->costs[least.state] != NONE)
            continue;
        costs->costs[least.state] = least.cost;
        if (!set(costs, &least, known, best) || !tell(costs, least.state, least.cost))
            return 0;
        for (int list = 0; list < 2; list++)
            for (int32_t i = costs->first[list][least.state]; i != NONE; i = costs->entries[i].next)
                if (!offer(costs, costs->entries[i].way))
                    return 0;
    }
    return 1;
}

static int has_memory(Costs *costs)
{
    size_t states = (size_t)costs->states, terminals = (size_t)costs->terminals;
    costs->costs = PyMem_Malloc(states * sizeof *costs->costs);
    costs->sizes = PyMem_Malloc(terminals * sizeof *costs->sizes);
    int right = costs->costs != NULL && costs->sizes != NULL;
    for (int list = 0; list < 2; list++) {
        costs->first[list] = PyMem_Malloc(states * sizeof **costs->first);
        costs->last[list] = PyMem_Malloc(states * sizeof **costs->last);
        right = right && costs->first[list] != NULL && costs->last[list] != NULL;
        if (right)
            memset(costs->first[list], NONE, states * sizeof **costs->first);
    }
    if (!right) {
        PyErr_NoMemory();
        return 0;
    }
    memset(costs->costs, NONE, states * sizeof *costs->costs);
    for (size_t i = 0; i < terminals; i++)
        costs->sizes[i] = NONE - 1;
    return 1;
}

static void free_costs(Costs *costs)
{
    for (int32_t i = 0; i < costs->way_count; i++)
        Py_DECREF(costs->ways[i].edge);
    for (int32_t i = 0; i < costs->entry_count; i++)
        Py_XDECREF(costs->entries[i].part);
    PyMem_Free(costs->ways), PyMem_Free(costs->entries), PyMem_Free(costs->heap);
    PyMem_Free(costs->costs), PyMem_Free(costs->sizes);
    for (int list = 0; list < 2; list++)
        PyMem_Free(costs->first[list]), PyMem_Free(costs->last[list]);
}

/* least_costs(edges, start, final, terminals, kinds, (read, parts, learn, cost), costs, best) -> bool

   `edges` are those of each state, `start` the states in which rules begin, `final` those in which
   they end, `terminals` the number of terminals. `kinds` are the classes of edges: of a terminal, a
   token, a rule, of nothing and of a group. `read` returns the bytes of a terminal's edge, or None;
   `parts` the parts of the group of an edge: pairs of the state in which one begins, and its index;
   `learn` is called with an edge, such an index and the cost of the part; `cost` returns that of the
   group of an edge, or None. Costs are put into `costs` by state, and the first edge of a way that
   has it into `best`. Returns False, with part of them, if one is too large. */
PyObject *least_costs(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *edges, *final, *known, *best;
    int terminals;
    Costs costs = {0};
    PyObject **kinds = costs.kinds;
    if (!PyArg_ParseTuple(arguments, "O!O!O!i(OOOOO)(OOOO)O!O!", &PyList_Type, &edges, &PyList_Type,
                          &costs.start, &PyList_Type, &final, &terminals, &kinds[TERMINAL],
                          &kinds[TOKEN], &kinds[RULE], &kinds[EPSILON], &kinds[GROUP], &costs.read,
                          &costs.parts, &costs.learn, &costs.group_cost, &PyDict_Type, &known,
                          &PyDict_Type, &best))
        return NULL;
    Py_ssize_t states = PyList_Size(edges);
    if (terminals < 0 || states > INT32_MAX / 2) {
        PyErr_SetString(PyExc_ValueError, "a network must have at most a billion states");
        return NULL;
    }
    costs.states = (int32_t)states, costs.terminals = terminals;
    int right = has_memory(&costs) && add_edges(&costs, edges);
    right = right && (costs.too_large || find_costs(&costs, final, known, best));
    int is_whole = !costs.too_large;
    free_costs(&costs);
    return right ? PyBool_FromLong(is_whole) : NULL;
}
