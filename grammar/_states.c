/* The states of an Earley parser, as objects in Python.

   `dlm.grammar.parse.state_table` does the same in Python where this is not built. A test holds both
   equal. A state is a cell (_cells.c), of which an object in Python is made when somebody asks. */

#include "_parser.h"

void leave_cell(Cell *cell)
{
    Py_XDECREF((PyObject *)cell);
}

/* Return an attribute of the meter, a number; the most if it is beyond that. -1 with an exception. */
static int64_t units_of(const States *states, int name)
{
    PyObject *number = PyObject_GetAttr(states->meter, states->names[name]);
    int beyond = 0;
    int64_t units = number == NULL ? -1 : PyLong_AsLongLongAndOverflow(number, &beyond);
    Py_XDECREF(number);
    return beyond > 0 ? INT64_MAX : units;
}

/* Read what work is allowed. Returns 0 with an exception. */
int begin_work(States *states, Work *work)
{
    int64_t spent = units_of(states, SPENT_NAME);
    int64_t most = spent < 0 ? -1 : units_of(states, LIMIT_NAME);
    *work = (Work){0, most > spent ? most - spent : 0};
    return most >= 0 || !PyErr_Occurred();
}

/* Add units to those that the meter has counted. Returns 0 with an exception. */
static int add_units(const States *states, int64_t units)
{
    PyObject *spent = PyObject_GetAttr(states->meter, states->names[SPENT_NAME]);
    PyObject *more = PyLong_FromLongLong(units), *sum = NULL;
    if (spent != NULL && more != NULL)
        sum = PyNumber_Add(spent, more);
    int right = sum != NULL && PyObject_SetAttr(states->meter, states->names[SPENT_NAME], sum) == 0;
    Py_XDECREF(sum);
    Py_XDECREF(more);
    Py_XDECREF(spent);
    return right;
}

/* Count the work that was done. An exception that is there stays. Returns 0 with an exception. */
int end_work(States *states, Work *work)
{
    PyObject *type, *value, *traceback;
    states->parts += work->parts, work->parts = 0;
    int64_t units = states->parts / PARTS_OF_UNIT;
    states->parts %= PARTS_OF_UNIT;
    PyErr_Fetch(&type, &value, &traceback);
    if (!units || add_units(states, units) || type != NULL)
        PyErr_Restore(type, value, traceback);
    return !PyErr_Occurred();
}

/* Return the cell of a state in Python, or a cell itself: a new reference; NULL with an exception. */
Cell *cell_of_state(States *states, PyObject *state)
{
    const Module *module = PyType_GetModuleState(Py_TYPE((PyObject *)states));
    if (Py_IS_TYPE(state, module->cell))
        return (Cell *)Py_NewRef(state);
    PyObject *cell = PyObject_GetAttr(state, states->names[CELL_NAME]);
    if (cell == NULL || Py_IS_TYPE(cell, module->cell))
        return (Cell *)cell;
    PyErr_Format(PyExc_TypeError, "a state must have a cell, got %R", cell);
    Py_DECREF(cell);
    return NULL;
}

/* Return a list of members as objects in Python. Those that `others` has, in the same order, are the
   same objects as in its own list, `made`. */
static PyObject *objects(const States *states, const Members *members, const Members *others,
                         PyObject *made)
{
    PyObject *list = PyList_New(0), *object;
    int32_t known = 0;
    for (int32_t i = 0; list != NULL && i < members->count; i++) {
        const Member *member = &members->members[i];
        if (made != NULL && known < others->count && same_member(member, &others->members[known]))
            object = Py_NewRef(PyList_GetItem(made, known++));
        else if (member->terminal == ITEM)
            object = item_object(states, &member->onward, member->stack);
        else
            object = thread_object(states, member);
        if (object == NULL || PyList_Append(list, object) < 0)
            Py_CLEAR(list);
        Py_XDECREF(object);
    }
    return list;
}

/* Return the state of a cell in Python, whose reference this takes over. The work to make it is counted
   with the next that is done. */
static PyObject *face_of(States *states, Cell *cell)
{
    PyObject *face = cell->face;
    if (face == NULL) {
        PyObject *threads = objects(states, &cell->threads, NULL, NULL);
        PyObject *items = objects(states, &cell->items, NULL, NULL);
        PyObject *kernel = objects(states, &cell->kernel, &cell->threads, threads);
        PyObject *may_end = cell->may_end ? Py_True : Py_False;
        states->parts += cell->threads.count + cell->items.count + cell->kernel.count;
        if (threads && items && kernel)
            face = PyObject_CallFunctionObjArgs(states->state, threads, items, kernel, may_end,
                                                states->costs, (PyObject *)cell, NULL);
        Py_XDECREF(threads);
        Py_XDECREF(items);
        Py_XDECREF(kernel);
        if (face != NULL && cell->face != NULL) {  /* another thread was faster */
            Py_DECREF(face);
            face = Py_NewRef(cell->face);
        } else if (face != NULL && cell->is_kept)  /* else nothing would free both of them */
            cell->face = Py_NewRef(face);
    } else
        Py_INCREF(face);
    leave_cell(cell);
    return face;
}

/* Return the cell of a kernel in Python: a new reference; NULL with an exception. */
static Cell *cell_of_objects(States *states, PyObject *kernel)
{
    Members members = {0};
    Member member;
    Work work = {0, 0};
    Cell *cell = NULL;
    PyObject *list = PySequence_Tuple(kernel);
    int right = list != NULL && begin_work(states, &work);
    for (Py_ssize_t i = 0; right && i < PyTuple_Size(list); i++)
        right = read_member(states, PyTuple_GetItem(list, i), &member) && add_new(&members, &member);
    if (right && members.count) {
        cell = cell_of(states, &members, &work);
        if (!end_work(states, &work)) {
            leave_cell(cell);
            cell = NULL;
        }
    } else if (right)
        PyErr_SetString(PyExc_ValueError, "a state must have a thread or an item");
    free_members(&members);
    Py_XDECREF(list);
    return cell;
}

static PyObject *of(PyObject *self, PyObject *kernel)
{
    Cell *cell = cell_of_objects((States *)self, kernel);
    return cell == NULL ? NULL : face_of((States *)self, cell);
}

static PyObject *for_walk(PyObject *self, PyObject *kernel)
{
    return (PyObject *)cell_of_objects((States *)self, kernel);
}

static PyObject *after(PyObject *self, PyObject *args)
{
    States *states = (States *)self;
    PyObject *state;
    Py_buffer piece;
    Work work = {0, 0};
    if (!PyArg_ParseTuple(args, "Oy*", &state, &piece))
        return NULL;
    Cell *cell = cell_of_state(states, state);
    int right = cell != NULL && begin_work(states, &work);
    for (Py_ssize_t i = 0; right && cell != NULL && i < piece.len; i++) {
        Cell *to;
        right = cell_after(states, cell, ((const uint8_t *)piece.buf)[i], &work, &to);
        leave_cell(cell);
        cell = right ? to : NULL;
    }
    PyBuffer_Release(&piece);
    if (!end_work(states, &work) || !right) {
        leave_cell(cell);
        return NULL;
    }
    if (cell == NULL)
        Py_RETURN_NONE;
    return face_of(states, cell);
}

static PyObject *clear(PyObject *self, PyObject *nothing)
{
    (void)nothing;
    if (!forget_states((States *)self))
        return NULL;
    Py_RETURN_NONE;
}

static Py_ssize_t length(PyObject *self)
{
    return ((States *)self)->count;
}

static void end(PyObject *self)
{
    States *states = (States *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject *owned[] = {
        states->tables, states->starts, states->move, states->of_state, states->of_rule,
        states->stacks, states->costs, states->meter, states->state, states->thread, states->item,
        states->refuse, states->numbers, states->pairs,
    };
    forget_cells(states);
    forget_predictions(states);
    for (long i = 0; i < states->terminal_count; i++)
        Py_XDECREF(states->terminals[i].object);
    PyMem_Free(states->terminals);
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        Py_XDECREF(owned[i]);
    for (int i = 0; i < NAMES; i++)
        Py_XDECREF(states->names[i]);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Set what does not depend on the arguments. Returns 0 with an exception. */
static int set_up(States *states)
{
    static const char *const names[NAMES] = {"waiting", "ends", "cell", "spent", "limit",
                                              "of_caller"};
    PyObject *zero = PyLong_FromLong(0);
    states->numbers = PyDict_New(), states->pairs = PyList_New(0);
    int right = zero && states->numbers && states->pairs;
    for (int i = 0; right && i < NAMES; i++)
        right = (states->names[i] = PyUnicode_InternFromString(names[i])) != NULL;
    right = right && bounds_of(states, zero, Py_None) == 0;
    Py_XDECREF(zero);
    return right;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *tables, *starts, *move, *of_state, *of_rule, *stacks, *costs, *meter, *state, *thread;
    PyObject *item, *classes, *refuse;
    long most_states, most_work;
    if (names != NULL && PyDict_Size(names)) {
        PyErr_SetString(PyExc_TypeError, "states take no arguments by name");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OOOOOOOOO!O(ll)", &tables, &starts, &move, &of_state, &of_rule, &stacks,
                          &costs, &meter, &PyTuple_Type, &classes, &refuse, &most_states,
                          &most_work) ||
        !PyArg_ParseTuple(classes, "OO!O!", &state, &PyType_Type, &thread, &PyType_Type, &item))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)thread, &PyTuple_Type) ||
        !PyType_IsSubtype((PyTypeObject *)item, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "items and threads must be of classes of tuples");
        return NULL;
    }
    States *states = (States *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (states == NULL)
        return NULL;
    states->tables = Py_NewRef(tables), states->starts = Py_NewRef(starts);
    states->move = Py_NewRef(move), states->of_state = Py_NewRef(of_state);
    states->of_rule = Py_NewRef(of_rule), states->stacks = Py_NewRef(stacks);
    states->costs = Py_NewRef(costs), states->meter = Py_NewRef(meter);
    states->state = Py_NewRef(state), states->thread = Py_NewRef(thread);
    states->item = Py_NewRef(item), states->refuse = Py_NewRef(refuse);
    states->most_states = most_states, states->most_work = most_work;
    if (set_up(states))
        return (PyObject *)states;
    Py_DECREF((PyObject *)states);
    return NULL;
}

static PyMethodDef methods[] = {
    {"of", of, METH_O, "Return the state of threads and items; see _states.c."},
    {"for_walk", for_walk, METH_O, "Return the cell of threads and items; see _states.c."},
    {"after", after, METH_VARARGS, "Return the state after some bytes; see _states.c."},
    {"clear", clear, METH_NOARGS, "Forget all states and stack nodes; see _states.c."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, make}, {Py_tp_dealloc, end}, {Py_tp_methods, methods}, {Py_sq_length, length},
    {0, NULL},
};

static PyType_Spec spec = {"dlm.grammar._walk.States", sizeof(States), 0, Py_TPFLAGS_DEFAULT, slots};

/* Make the types of states and of their cells. Returns 0 with an exception. */
int make_state_types(PyObject *module, Module *types)
{
    types->cell = make_cell_type(module);
    types->states = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return types->cell != NULL && types->states != NULL;
}
