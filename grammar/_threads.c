/* Threads read bytes: the step of an Earley parser that scans, and the next states of a state.

   `dlm.grammar.parse.threads` does the same in Python where this is not built. A test holds both
   equal.

   A thread is a named tuple (terminal, at, read, low, high, onward). The table of a terminal is its
   text, if it is a literal: then `at` is the number of bytes read. Otherwise it is a tuple of two
   lists by state of its scanner, and a function. One list holds the moves (first byte, last byte,
   next state) in their order, and None in place of those that the function returns. The other list
   holds whether a text may end in the state. */

#include "_shared.h"

#include <limits.h>

enum { TERMINAL, AT, READ, LOW, HIGH, ONWARD, THREAD };  /* the fields of a thread; their number */
enum { MOVES, FINAL, ASK, TABLE };
enum { FIRST_BYTE, LAST_BYTE, TO, MOVE };
enum { NO = -1, FAILED = -2 };   /* in place of a state; FAILED: with an exception */
enum { NOT, MAY, MUST };         /* whether a text of a terminal ends in a state */

typedef struct {
    PyObject *object;            /* a reference that the table owns */
    const char *text;            /* NULL if the terminal is no literal */
    Py_ssize_t length;
    PyObject *moves, *final, *ask;
} Table;

typedef struct {
    long low, high, to;
} Move;

/* What the arguments of all steps have in common. */
typedef struct {
    PyObject *tables, *class, *move;  /* by terminal; of threads; moves threads that count */
} Threads;

/* What a byte leads to. */
typedef struct {
    PyObject *members;
    int begin, end;              /* the bytes that lead to the same members */
    int may_end;                 /* a terminal may end there */
} Step;

/* Whether an object is a tuple of `size` fields; if not, there is an exception. */
int is_tuple(PyObject *object, Py_ssize_t size)
{
    if (object != NULL && PyTuple_Check(object) && PyTuple_Size(object) == size)
        return 1;
    if (object != NULL)
        PyErr_Format(PyExc_TypeError, "what steps of parsers read must be a tuple of %zd, got %R", size,
                     object);
    return 0;
}

/* Return a field of a tuple, a number of 0 to `most`; FAILED otherwise. */
long number(PyObject *tuple, int field, long most)
{
    long value = PyLong_AsLong(PyTuple_GetItem(tuple, field));
    if (value >= 0 && value <= most)
        return value;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "a byte, a state or a size must be from 0 to %ld, got %ld", most,
                     value);
    return FAILED;
}

/* Find the table of a thread's terminal. Returns 0 with an exception if there is none. */
static int find_table(PyObject *tables, PyObject *thread, Table *table)
{
    PyObject *terminal = PyTuple_GetItem(thread, TERMINAL);
    PyObject *object = PyDict_GetItemWithError(tables, terminal);
    Py_XINCREF(object);
    if (object == NULL && !PyErr_Occurred())
        object = PyObject_GetItem(tables, terminal);  /* which may make it */
    if (object == NULL)
        return 0;
    *table = (Table){.object = object};
    if (PyBytes_Check(object)) {
        table->text = PyBytes_AsString(object), table->length = PyBytes_Size(object);
        return 1;
    }
    if (is_tuple(object, TABLE)) {
        table->moves = PyTuple_GetItem(object, MOVES), table->final = PyTuple_GetItem(object, FINAL);
        table->ask = PyTuple_GetItem(object, ASK);
        if (PyList_Check(table->moves) && PyList_Check(table->final))
            return 1;
        PyErr_SetString(PyExc_TypeError, "a table must begin with two lists");
    }
    Py_DECREF(object);
    return 0;
}

/* Return the moves from a state of a terminal that is no literal: a new reference to a tuple. */
static PyObject *moves_from(const Table *table, long state)
{
    PyObject *moves = PyList_GetItem(table->moves, state);
    if (moves == Py_None)
        moves = PyObject_CallFunction(table->ask, "l", state);
    else
        Py_XINCREF(moves);
    if (moves != NULL && !PyTuple_Check(moves)) {
        PyErr_Format(PyExc_TypeError, "moves must be a tuple, got %R", moves);
        Py_CLEAR(moves);
    }
    return moves;
}

/* Read one of several moves. Returns 0 with an exception. */
static int read_move(PyObject *moves, Py_ssize_t i, Move *move)
{
    PyObject *fields = PyTuple_GetItem(moves, i);
    if (!is_tuple(fields, MOVE))
        return 0;
    move->low = number(fields, FIRST_BYTE, 255);
    move->high = move->low == FAILED ? FAILED : number(fields, LAST_BYTE, 255);
    move->to = move->high == FAILED ? FAILED : number(fields, TO, LONG_MAX);
    return move->to != FAILED;
}

/* Narrow the bytes of a step to those on the same side of a move as `byte`. Returns -1 if the move's
   bytes come before `byte`, 0 if they include it, and 1 if they come after it. */
static int narrow(Step *step, int low, int high, int byte)
{
    if (high < byte) {
        step->begin = high >= step->begin ? high + 1 : step->begin;
        return -1;
    }
    if (low > byte) {
        step->end = low <= step->end ? low - 1 : step->end;
        return 1;
    }
    step->begin = low > step->begin ? low : step->begin;
    step->end = high < step->end ? high : step->end;
    return 0;
}

/* Return the state that `byte` leads to from `at`, NO or FAILED. */
static long state_after(const Table *table, long at, int byte, Step *step)
{
    if (table->text != NULL) {
        int taken = at < table->length ? (uint8_t)table->text[at] : NO;
        return taken != NO && narrow(step, taken, taken, byte) == 0 ? at + 1 : NO;
    }
    PyObject *moves = moves_from(table, at);
    long to = moves == NULL ? FAILED : NO;
    int side = -1;
    for (Py_ssize_t i = 0; to == NO && side < 0 && i < PyTuple_Size(moves); i++) {
        Move move;
        if (!read_move(moves, i, &move))
            to = FAILED;
        else if ((side = narrow(step, (int)move.low, (int)move.high, byte)) == 0)
            to = move.to;
    }
    Py_XDECREF(moves);
    return to;
}

/* Return whether a text of a terminal ends in a state: NOT, MAY, MUST or FAILED. */
static int ending(const Table *table, long state)
{
    if (table->text != NULL)
        return state == table->length ? MUST : NOT;
    PyObject *final = PyList_GetItem(table->final, state), *moves;
    Py_XINCREF(final);
    int may = final == NULL ? FAILED : PyObject_IsTrue(final);
    Py_XDECREF(final);
    if (may <= 0)
        return may == 0 ? NOT : FAILED;
    moves = moves_from(table, state);
    may = moves == NULL ? FAILED : PyTuple_Size(moves) ? MAY : MUST;
    Py_XDECREF(moves);
    return may;
}

/* Whether the objects of a class are tuples; if not, there is an exception. */
int are_tuples(PyObject *class)
{
    if (PyType_IsSubtype((PyTypeObject *)class, &PyTuple_Type))
        return 1;
    PyErr_Format(PyExc_TypeError, "items and threads must be of classes of tuples, got %R", class);
    return 0;
}

/* Return an object of a class of tuples; this takes over the reference to `fields`, or to NULL. */
PyObject *named(PyObject *class, PyObject *fields)
{
    newfunc make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *arguments = fields == NULL ? NULL : PyTuple_Pack(1, fields), *made = NULL;
    if (arguments != NULL)
        made = make((PyTypeObject *)class, arguments, NULL);
    Py_XDECREF(arguments);
    Py_XDECREF(fields);
    return made;
}

/* Return a thread without bounds moved to a state of its scanner. */
static PyObject *moved_thread(PyObject *class, PyObject *thread, long to)
{
    PyObject *at = PyLong_FromLong(to), *zero = PyTuple_GetItem(thread, LOW), *fields = NULL;
    if (at != NULL)
        fields = PyTuple_Pack(THREAD, PyTuple_GetItem(thread, TERMINAL), at, zero, zero, Py_None,
                              PyTuple_GetItem(thread, ONWARD));
    Py_XDECREF(at);
    return named(class, fields);
}

/* Add what a thread becomes in another state of its scanner. Returns 0 with an exception. */
static int add_moved(const Threads *threads, const Table *table, PyObject *thread, long to, Step *step)
{
    PyObject *low = PyTuple_GetItem(thread, LOW), *moved = NULL;
    int bounded = PyTuple_GetItem(thread, HIGH) != Py_None ? 1 : PyObject_IsTrue(low);
    if (bounded >= 0)
        moved = bounded ? PyObject_CallFunction(threads->move, "Ol", thread, to)
                        : moved_thread(threads->class, thread, to);
    int right = moved == Py_None, ends = NOT, enough = 0;
    if (!right && is_tuple(moved, THREAD) && (ends = ending(table, to)) != FAILED) {
        if (ends == MAY)
            enough = PyObject_RichCompareBool(PyTuple_GetItem(moved, READ), low, Py_GE);
        step->may_end |= ends == MUST || enough;
        if (enough >= 0)
            right = PyList_Append(step->members,
                                  ends == MUST ? PyTuple_GetItem(thread, ONWARD) : moved) == 0;
    }
    Py_XDECREF(moved);
    return right;
}

/* Read a byte by all members, a tuple of threads. Returns 0 with an exception. */
static int read_byte(const Threads *threads, PyObject *members, int byte, Step *step)
{
    int right = 1;
    *step = (Step){PyList_New(0), 0, 255, 0};
    if (step->members == NULL)
        return 0;
    for (Py_ssize_t i = 0; right && i < PyTuple_Size(members); i++) {
        PyObject *thread = PyTuple_GetItem(members, i);
        long at = is_tuple(thread, THREAD) ? number(thread, AT, LONG_MAX) : FAILED, to;
        Table table;
        if (at == FAILED || !find_table(threads->tables, thread, &table))
            return 0;
        to = state_after(&table, at, byte, step);
        right = to == NO || (to != FAILED && add_moved(threads, &table, thread, to, step));
        Py_DECREF(table.object);
    }
    return right;
}

/* Return the members after a run of bytes that a piece begins with; the first and the last byte that
   lead to the same in place of the run's last one; the run's length; and the bytes read by all. */
static PyObject *read_run(PyObject *module, PyObject *args)
{
    Threads threads;
    Step step = {NULL, 0, 255, 0};
    PyObject *members, *result = NULL;
    Py_buffer piece;
    Py_ssize_t length = 0, read = 0;
    (void)module;

    if (!PyArg_ParseTuple(args, "O!O!OOy*", &PyDict_Type, &threads.tables, &PyType_Type,
                          &threads.class, &threads.move, &members, &piece))
        return NULL;
    int right = are_tuples(threads.class);
    step.members = PyList_New(0);
    members = right && step.members != NULL ? PySequence_Tuple(members) : NULL;
    while (members != NULL && length < piece.len) {
        Py_CLEAR(step.members);
        read += PyTuple_Size(members);
        right = read_byte(&threads, members, ((uint8_t *)piece.buf)[length++], &step);
        Py_CLEAR(members);
        if (right)
            members = PyList_AsTuple(step.members);
        if (members == NULL || step.may_end || step.begin < step.end || PyTuple_Size(members) == 0)
            break;
    }
    if (members != NULL)
        result = Py_BuildValue("Oiinn", step.members, step.begin, step.end, length, read);
    Py_XDECREF(members);
    Py_XDECREF(step.members);
    PyBuffer_Release(&piece);
    return result;
}

/* Mark the bytes that a thread takes in the next states of its state. Returns 0 with an exception. */
static int mark(PyObject *tables, PyObject *thread, PyObject *unread, PyObject **states)
{
    long at = is_tuple(thread, THREAD) ? number(thread, AT, LONG_MAX) : FAILED;
    Table table;
    Move move;
    if (at == FAILED || !find_table(tables, thread, &table))
        return 0;
    int right = 1;
    if (table.text != NULL && at < table.length)
        states[(uint8_t)table.text[at]] = unread;
    PyObject *moves = table.text == NULL ? moves_from(&table, at) : PyTuple_New(0);
    for (Py_ssize_t i = 0; moves != NULL && right && i < PyTuple_Size(moves); i++) {
        right = read_move(moves, i, &move);
        for (long byte = move.low; right && byte <= move.high; byte++)
            states[byte] = unread;
    }
    right = right && moves != NULL;
    Py_XDECREF(moves);
    Py_DECREF(table.object);
    return right;
}

/* Return the next states by byte: `onward` from `begin` to `end`, `unread` for other bytes that the
   threads take, and None for all others. */
static PyObject *next_states(PyObject *module, PyObject *args)
{
    PyObject *tables, *threads, *unread, *onward, *none, *list = NULL, *states[256] = {NULL};
    unsigned char begin, end;
    int right = 1;
    (void)module;

    if (!PyArg_ParseTuple(args, "O!OObbO", &PyDict_Type, &tables, &threads, &unread, &begin, &end,
                          &onward) || (threads = PySequence_Tuple(threads)) == NULL)
        return NULL;
    for (Py_ssize_t i = 0; right && i < PyTuple_Size(threads); i++)
        right = mark(tables, PyTuple_GetItem(threads, i), unread, states);
    Py_DECREF(threads);
    for (int byte = begin; byte <= end; byte++)
        states[byte] = onward;
    none = right ? Py_BuildValue("[O]", Py_None) : NULL;
    if (none != NULL)
        list = PySequence_Repeat(none, 256);
    Py_XDECREF(none);
    for (int byte = 0; list != NULL && byte < 256; byte++) {
        Py_XINCREF(states[byte]);
        if (states[byte] != NULL)
            PyList_SetItem(list, byte, states[byte]);
    }
    return list;
}

static PyMethodDef methods[] = {
    {"next_states", next_states, METH_VARARGS, "Return the next states by byte; see _threads.c."},
    {"read_run", read_run, METH_VARARGS, "Read a run of bytes by threads; see _threads.c."},
    {NULL, NULL, 0, NULL},
};

/* Add the steps to the module. */
int add_threads(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
