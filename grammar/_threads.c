/* Threads of an Earley parser read a byte. */

#include "_parser.h"

#include <string.h>

enum { MOVES, FINAL, ASK, TABLE };                   /* of a terminal that is no literal */
enum { FIRST_BYTE, LAST_BYTE, TO, MOVE };
enum { MOST_TERMINALS = 1 << 24 };
enum { MOVES_OF_PART = 8 };      /* of work: moves that are read */
enum { CALL = 4 };               /* parts of work, for a call of a function in Python */
enum { NO = -1, FAILED = -2 };   /* in place of a state; FAILED: with an exception */
enum { NOT, MAY, MUST };         /* whether a text of a terminal ends in a state */

typedef struct {
    long low, high, to;
} Move;

/* Return a field of a tuple, a number of 0 to `most`; FAILED otherwise. */
static long number(PyObject *tuple, int field, long most)
{
    long value = PyLong_AsLong(PyTuple_GetItem(tuple, field));
    if (value >= 0 && value <= most)
        return value;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "a byte or a state must be from 0 to %ld, got %ld", most, value);
    return FAILED;
}

/* Read what `terminal->object` holds. Returns 0 with an exception. */
static int read_terminal(Terminal *terminal)
{
    PyObject *object = terminal->object;
    if (PyBytes_Check(object)) {
        terminal->text = PyBytes_AsString(object), terminal->length = PyBytes_Size(object);
        return 1;
    }
    if (!is_tuple(object, TABLE))
        return 0;
    terminal->moves = PyTuple_GetItem(object, MOVES), terminal->final = PyTuple_GetItem(object, FINAL);
    terminal->ask = PyTuple_GetItem(object, ASK);
    if (PyList_Check(terminal->moves) && PyList_Check(terminal->final))
        return 1;
    PyErr_SetString(PyExc_TypeError, "a table must begin with two lists");
    return 0;
}

/* Make a terminal known. Returns 0 with an exception. */
static int learn(States *states, int32_t number)
{
    PyObject *key = PyLong_FromLong(number), *start = NULL;
    Terminal made = {0};
    int right = 0;
    if (key != NULL && (made.object = PyObject_GetItem(states->tables, key)) != NULL)
        start = PyObject_GetItem(states->starts, key);
    if (start != NULL)
        made.start = PyLong_AsLong(start);
    if (start != NULL && !PyErr_Occurred() && made.start >= 0 && made.start <= INT32_MAX)
        right = read_terminal(&made);
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "the first state of a terminal must be a small number");
    if (right && number >= states->terminal_count) {
        long count = number + number / 2 + 16;
        Terminal *grown = PyMem_Realloc(states->terminals, (size_t)count * sizeof *grown);
        right = grown != NULL;
        if (right) {
            memset(grown + states->terminal_count, 0,
                   (size_t)(count - states->terminal_count) * sizeof *grown);
            states->terminals = grown, states->terminal_count = count;
        } else
            PyErr_NoMemory();
    }
    if (right && states->terminals[number].object == NULL) {
        states->terminals[number] = made;
        made.object = NULL;
    }
    Py_XDECREF(made.object);
    Py_XDECREF(start);
    Py_XDECREF(key);
    return right;
}

/* Copy what is known of a terminal, which lives as long as the states. Returns 0 with an exception. */
int find_terminal(States *states, int32_t number, Terminal *terminal)
{
    if (number < 0 || number > MOST_TERMINALS) {
        PyErr_Format(PyExc_ValueError, "a terminal must be from 0 to %d", MOST_TERMINALS);
        return 0;
    }
    if ((number >= states->terminal_count || states->terminals[number].object == NULL) &&
        !learn(states, number))
        return 0;
    *terminal = states->terminals[number];
    return 1;
}

/* Return the moves from a state of a terminal that is no literal: a new reference to a tuple. */
static PyObject *moves_from(const Terminal *terminal, long state)
{
    PyObject *moves = PyList_GetItem(terminal->moves, state);
    if (moves == Py_None)
        moves = PyObject_CallFunction(terminal->ask, "l", state);
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
    move->to = move->high == FAILED ? FAILED : number(fields, TO, INT32_MAX);
    return move->to != FAILED;
}

/* Narrow the bytes from `begin` to `end` to those on the same side of a move as `byte`. Returns -1 if
   the move's bytes come before `byte`, 0 if they include it, and 1 if they come after it. */
static int narrow(int *begin, int *end, int low, int high, int byte)
{
    if (high < byte) {
        *begin = high >= *begin ? high + 1 : *begin;
        return -1;
    }
    if (low > byte) {
        *end = low <= *end ? low - 1 : *end;
        return 1;
    }
    *begin = low > *begin ? low : *begin;
    *end = high < *end ? high : *end;
    return 0;
}

/* Return the state that `byte` leads to from `at`, NO or FAILED. */
static long state_after(const Terminal *terminal, long at, int byte, int *begin, int *end, Work *work)
{
    if (terminal->text != NULL) {
        int taken = at < terminal->length ? (uint8_t)terminal->text[at] : NO;
        return taken != NO && narrow(begin, end, taken, taken, byte) == 0 ? at + 1 : NO;
    }
    PyObject *moves = moves_from(terminal, at);
    long to = moves == NULL ? FAILED : NO;
    Py_ssize_t i = 0;
    for (int side = -1; to == NO && side < 0 && i < PyTuple_Size(moves); i++) {
        Move move;
        if (!read_move(moves, i, &move))
            to = FAILED;
        else if ((side = narrow(begin, end, (int)move.low, (int)move.high, byte)) == 0)
            to = move.to;
    }
    work->parts += i / MOVES_OF_PART;
    Py_XDECREF(moves);
    return to;
}

/* Return whether a text of a terminal ends in a state: NOT, MAY, MUST or FAILED. */
static int ending(const Terminal *terminal, long state)
{
    if (terminal->text != NULL)
        return state == terminal->length ? MUST : NOT;
    PyObject *final = PyList_GetItem(terminal->final, state), *moves;
    Py_XINCREF(final);
    int may = final == NULL ? FAILED : PyObject_IsTrue(final);
    Py_XDECREF(final);
    if (may <= 0)
        return may == 0 ? NOT : FAILED;
    moves = moves_from(terminal, state);
    may = moves == NULL ? FAILED : PyTuple_Size(moves) ? MAY : MUST;
    Py_XDECREF(moves);
    return may;
}

/* Whether what a thread has read is a text of its terminal; -1 with an exception. */
int ended(States *states, const Member *thread)
{
    Terminal terminal;
    if (!find_terminal(states, thread->terminal, &terminal))
        return -1;
    int ends = ending(&terminal, thread->at);
    return ends == FAILED ? -1 : ends != NOT && has_enough(states, thread);
}

/* Move a thread with bounds to a state of its scanner. Returns 1; 0 if it cannot keep them; -1 with an
   exception. */
static int move_bounded(States *states, Member *thread, long to)
{
    PyObject *object = thread_object(states, thread), *moved = NULL;
    Member read;
    if (object != NULL)
        moved = PyObject_CallFunction(states->move, "Ol", object, to);
    int right = moved == NULL ? -1 : moved != Py_None;
    if (right == 1 && (right = read_member(states, moved, &read) ? 1 : -1) == 1) {
        if (read.terminal == thread->terminal && read.bounds == thread->bounds)
            thread->read = read.read;
        else {
            PyErr_SetString(PyExc_ValueError, "a thread must keep its terminal and its bounds");
            right = -1;
        }
    }
    Py_XDECREF(moved);
    Py_XDECREF(object);
    return right;
}

/* Add what a thread becomes in another state of its scanner. Returns 0 with an exception. */
static int add_moved(States *states, const Terminal *terminal, const Member *thread, long to,
                     Members *reached)
{
    Member moved = *thread;
    int kept = thread->bounds ? move_bounded(states, &moved, to) : 1;
    if (kept <= 0)
        return kept == 0;
    moved.at = (int32_t)to;
    int ends = ending(terminal, to);
    if (ends == MUST)
        moved = (Member){.terminal = ITEM, .onward = thread->onward, .stack = thread->stack};
    return ends != FAILED && add_new(reached, &moved);
}

/* Read a byte by threads. Adds the members after it to `reached`, and narrows the bytes from `begin` to
   `end` to those that lead to the same. Returns 0 with an exception. */
int read_byte(States *states, const Members *threads, int byte, Members *reached, int *begin, int *end,
              Work *work)
{
    for (int32_t i = 0; i < threads->count; i++) {
        const Member *thread = &threads->members[i];
        Terminal terminal;
        if (!find_terminal(states, thread->terminal, &terminal))
            return 0;
        long to = state_after(&terminal, thread->at, byte, begin, end, work);
        if (to != NO && thread->bounds)
            work->parts += CALL;
        if (to == FAILED || (to != NO && !add_moved(states, &terminal, thread, to, reached)))
            return 0;
    }
    return 1;
}
