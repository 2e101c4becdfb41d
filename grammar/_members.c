/* Threads and items of an Earley parser, sets of them, and their objects in Python. */

#include "_parser.h"

#include <string.h>

enum { FEW = 16 };  /* members up to which a list is searched from its beginning; a power of two */

enum { STATE, STACK, ITEM_FIELDS };                             /* of an item */
enum { TERMINAL, AT, READ, LOW, HIGH, ONWARD, THREAD_FIELDS };  /* of a thread */

static uint64_t mixed(uint64_t value)
{
    value = (value ^ (value >> 32)) * 0x9E3779B97F4A7C15u;
    return value ^ (value >> 29);
}

/* Whether two large numbers are equal; NULL stands for none. Comparing them cannot fail. */
static int same_number(PyObject *a, PyObject *b)
{
    return a == b || (a != NULL && b != NULL && PyObject_RichCompareBool(a, b, Py_EQ) == 1);
}

int same_place(const Place *a, const Place *b)
{
    return a->number == b->number && same_number(a->large, b->large);
}

uint64_t hash_of_place(const Place *place)
{
    return mixed((uint64_t)place->number);
}

/* Read a network state. The reference to a large number is that of the caller. Returns 0 with an
   exception. */
int read_place(PyObject *number, Place *place)
{
    int beyond;
    place->large = NULL;
    place->number = PyLong_AsLongLongAndOverflow(number, &beyond);
    if (place->number == -1 && PyErr_Occurred())
        return 0;
    if (!beyond)
        return 1;
    if (!PyLong_CheckExact(number)) {
        PyErr_Format(PyExc_TypeError, "a state must be a whole number, got %R", number);
        return 0;
    }
    place->large = number, place->number = PyObject_Hash(number);
    return 1;
}

PyObject *place_object(const Place *place)
{
    return place->large ? Py_NewRef(place->large) : PyLong_FromLongLong(place->number);
}

uint64_t hash_of(const Member *member)
{
    uint64_t hash = mixed((uint64_t)(uint32_t)member->terminal << 32 | (uint32_t)member->at);
    hash = mixed(hash ^ (uint64_t)member->onward.number);
    hash = mixed(hash ^ (uint64_t)(uintptr_t)member->stack);
    return mixed(hash ^ (uint64_t)member->read ^ (uint64_t)(uint32_t)member->bounds << 32);
}

int same_member(const Member *a, const Member *b)
{
    return a->terminal == b->terminal && a->at == b->at && a->bounds == b->bounds &&
           a->read == b->read && a->stack == b->stack && same_place(&a->onward, &b->onward);
}

/* Put a member of a list into its slots. */
static void put(Members *list, int32_t i)
{
    uint32_t mask = (uint32_t)list->slots_room - 1, slot = (uint32_t)hash_of(&list->members[i]) & mask;
    while (list->slots[slot])
        slot = (slot + 1) & mask;
    list->slots[slot] = i + 1;
}

/* Make slots for twice as many members as there are. Returns 0 with an exception if there is no
   memory. */
static int index_all(Members *list)
{
    int32_t room = 2 * FEW;
    while (room < 4 * list->count)
        room *= 2;
    int32_t *slots = PyMem_Calloc((size_t)room, sizeof *slots);
    if (slots == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    PyMem_Free(list->slots);
    list->slots = slots, list->slots_room = room;
    for (int32_t i = 0; i < list->count; i++)
        put(list, i);
    return 1;
}

/* Return the number of a member in a list; -1 if it is not there. */
int32_t find(const Members *list, const Member *member)
{
    if (list->slots == NULL) {
        for (int32_t i = 0; i < list->count; i++)
            if (same_member(&list->members[i], member))
                return i;
        return -1;
    }
    uint32_t mask = (uint32_t)list->slots_room - 1, slot = (uint32_t)hash_of(member) & mask;
    for (; list->slots[slot]; slot = (slot + 1) & mask)
        if (same_member(&list->members[list->slots[slot] - 1], member))
            return list->slots[slot] - 1;
    return -1;
}

/* Return an array with room for one more than its `count` elements of `size` bytes, which may be
   another one; NULL with an exception if there is no memory: then it stays as it is. */
void *with_room(void *array, int32_t count, int32_t *room, size_t size)
{
    if (count < *room)
        return array;
    int32_t more = *room ? 2 * *room : 4;
    void *grown = PyMem_Realloc(array, (size_t)more * size);
    if (grown == NULL)
        return PyErr_NoMemory();
    *room = more;
    return grown;
}

/* Add a member, unless it is there. Returns 0 with an exception if there is no memory. */
int add_new(Members *list, const Member *member)
{
    if (find(list, member) >= 0)
        return 1;
    Member *members = with_room(list->members, list->count, &list->room, sizeof *members);
    if (members == NULL)
        return 0;
    list->members = members;
    members[list->count++] = *member;
    Py_INCREF(member->stack);
    Py_XINCREF(member->onward.large);
    if (list->slots != NULL && 2 * list->count <= list->slots_room)
        put(list, list->count - 1);
    else if (list->count > FEW)
        return index_all(list);
    return 1;
}

/* Free a list, which is empty then. */
void free_members(Members *list)
{
    Members freed = *list;
    memset(list, 0, sizeof *list);
    for (int32_t i = 0; i < freed.count; i++) {
        Py_DECREF(freed.members[i].stack);
        Py_XDECREF(freed.members[i].onward.large);
    }
    PyMem_Free(freed.members);
    PyMem_Free(freed.slots);
}

/* Return the number of a pair of bounds; -1 with an exception. */
int bounds_of(States *states, PyObject *low, PyObject *high)
{
    if (!PyLong_Check(low) || (high != Py_None && !PyLong_Check(high))) {
        PyErr_Format(PyExc_TypeError, "bounds must be whole numbers, got %R and %R", low, high);
        return -1;
    }
    PyObject *pair = PyTuple_Pack(2, low, high);
    if (pair == NULL)
        return -1;
    PyObject *number = PyDict_GetItemWithError(states->numbers, pair);
    long known = number == NULL ? -1 : PyLong_AsLong(number);
    if (number == NULL && !PyErr_Occurred() && PyList_Append(states->pairs, pair) == 0) {
        known = (long)PyList_Size(states->pairs) - 1;
        number = PyLong_FromLong(known);
        if (number == NULL || PyDict_SetItem(states->numbers, pair, number) < 0)
            known = -1;
        Py_XDECREF(number);
    }
    Py_DECREF(pair);
    return (int)known;
}

/* Whether a thread has read as many characters as it must. */
int has_enough(const States *states, const Member *thread)
{
    if (!thread->bounds)
        return 1;
    int beyond;
    PyObject *low = PyTuple_GetItem(PyList_GetItem(states->pairs, thread->bounds), 0);
    int64_t least = PyLong_AsLongLongAndOverflow(low, &beyond);
    return !beyond && thread->read >= least;
}

/* Whether a member is a thread that has read as many characters as it must, and has a limit. */
static int is_counted(const States *states, const Member *member)
{
    return member->terminal != ITEM && member->bounds &&
           PyTuple_GetItem(PyList_GetItem(states->pairs, member->bounds), 1) != Py_None &&
           has_enough(states, member);
}

/* Take out threads after which another one allows all the same texts: of those of one terminal that
   differ in the characters read, once all have enough, that with the fewest may still read the most.
   Returns 0 with an exception. */
int drop_dominated(const States *states, Members *list)
{
    Members fewest = {0};
    int32_t kept = 0, counted = 0;
    int right = 1;

    for (int32_t i = 0; i < list->count; i++)
        counted += is_counted(states, &list->members[i]);
    if (counted < 2)
        return 1;
    char *dominated = PyMem_Calloc((size_t)list->count, 1);
    int32_t *best = PyMem_Malloc((size_t)list->count * sizeof *best);  /* by situation */
    if (dominated == NULL || best == NULL) {
        PyErr_NoMemory();
        right = 0;
    }
    for (int32_t i = 0; right && i < list->count; i++) {
        Member situation = list->members[i];
        if (!is_counted(states, &situation))
            continue;
        situation.read = 0;
        int32_t j = find(&fewest, &situation);
        if (j < 0) {
            best[fewest.count] = i;
            right = add_new(&fewest, &situation);
            continue;
        }
        int is_better = list->members[i].read < list->members[best[j]].read;
        dominated[is_better ? best[j] : i] = 1;
        best[j] = is_better ? i : best[j];
    }
    free_members(&fewest);
    for (int32_t i = 0; right && i < list->count; i++) {
        if (!dominated[i]) {
            list->members[kept++] = list->members[i];
            continue;
        }
        Py_DECREF(list->members[i].stack);
        Py_XDECREF(list->members[i].onward.large);
    }
    if (right)
        list->count = kept;
    PyMem_Free(dominated);
    PyMem_Free(best);
    PyMem_Free(list->slots);
    list->slots = NULL;
    return right && (list->count <= FEW || index_all(list));
}

/* Read a number that has a place in 32 bits. Returns 0 with an exception. */
static int read_small(PyObject *object, int32_t *number)
{
    long value = PyLong_AsLong(object);
    if (value == -1 && PyErr_Occurred())
        return 0;
    if (value < 0 || value > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "a terminal or a state must be from 0 to %d, got %ld", INT32_MAX,
                     value);
        return 0;
    }
    *number = (int32_t)value;
    return 1;
}

/* Read an item or a thread. The references in `member` are those of the object. Returns 0 with an
   exception. */
int read_member(States *states, PyObject *object, Member *member)
{
    PyObject *item = object;
    *member = (Member){.terminal = ITEM};
    if (PyTuple_Check(object) && PyTuple_Size(object) == THREAD_FIELDS) {
        item = PyTuple_GetItem(object, ONWARD);
        member->read = PyLong_AsLongLong(PyTuple_GetItem(object, READ));
        if ((member->read == -1 && PyErr_Occurred()) ||
            !read_small(PyTuple_GetItem(object, TERMINAL), &member->terminal) ||
            !read_small(PyTuple_GetItem(object, AT), &member->at))
            return 0;
        member->bounds = bounds_of(states, PyTuple_GetItem(object, LOW), PyTuple_GetItem(object, HIGH));
        if (member->bounds < 0)
            return 0;
    }
    if (!is_tuple(item, ITEM_FIELDS) || !read_place(PyTuple_GetItem(item, STATE), &member->onward))
        return 0;
    member->stack = PyTuple_GetItem(item, STACK);
    return 1;
}

PyObject *item_object(const States *states, const Place *place, PyObject *stack)
{
    PyObject *number = place_object(place), *fields = NULL;
    if (number != NULL)
        fields = PyTuple_Pack(ITEM_FIELDS, number, stack);
    Py_XDECREF(number);
    return named(states->item, fields);
}

PyObject *thread_object(const States *states, const Member *thread)
{
    PyObject *pair = PyList_GetItem(states->pairs, thread->bounds);
    PyObject *terminal = PyLong_FromLong(thread->terminal), *at = PyLong_FromLong(thread->at);
    PyObject *read = PyLong_FromLongLong(thread->read), *fields = NULL;
    PyObject *onward = item_object(states, &thread->onward, thread->stack);
    if (terminal && at && read && onward)
        fields = PyTuple_Pack(THREAD_FIELDS, terminal, at, read, PyTuple_GetItem(pair, 0),
                              PyTuple_GetItem(pair, 1), onward);
    Py_XDECREF(terminal);
    Py_XDECREF(at);
    Py_XDECREF(read);
    Py_XDECREF(onward);
    return named(states->thread, fields);
}

/* Whether an object is a tuple of `size` fields; if not, there is an exception. */
int is_tuple(PyObject *object, Py_ssize_t size)
{
    if (object != NULL && PyTuple_Check(object) && PyTuple_Size(object) == size)
        return 1;
    if (object != NULL)
        PyErr_Format(PyExc_TypeError, "what a parser reads must be a tuple of %zd, got %R", size,
                     object);
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
