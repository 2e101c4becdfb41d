/* Closures of kernels: what an Earley parser predicts and completes with nothing read.

   `dlm.grammar.parse.closure` does the same in Python where this is not built. A test holds both
   equal.

   An item is a named tuple (state, stack), and a thread (terminal, at, read, low, high, onward). The
   attribute `waiting` of a stack holds the callers of a rule, items, and `ends` whether the text ends
   with the rule. A prediction is a tuple of four lists, and whether its rule may end, and a size. */

#include "_shared.h"

enum { STATE, STACK, ITEM };                                        /* the fields of an item */
enum { READS, TOKENS, CALLS, ONWARD, ENDS, SIZE, PREDICTION };      /* of a prediction */
enum { TERMINAL, TO, LOW, HIGH, EDGE };                             /* of an edge of `READS` */
enum { RULE, AFTER, CALL };                                         /* of a call */

typedef struct {
    PyObject *of_state, *of_rule, *of_rules;  /* predictions; the stacks of rules by their callers */
    PyObject *starts, *item, *thread;         /* by terminal; the classes of items and threads */
    PyObject *pending, *seen;                 /* items that are still to be read; all of them */
    PyObject *predicted;                      /* pairs of a prediction, and its stack or rule */
    PyObject *callers, *rules;                /* lists by rule; rules in the order of their calls */
    PyObject *threads, *at_tokens;            /* the result */
    long work;
    int may_end;
} Closure;

/* Whether an object is a list; if not, there is an exception. */
static int is_list(PyObject *object)
{
    if (object != NULL && PyList_Check(object))
        return 1;
    if (object != NULL)
        PyErr_Format(PyExc_TypeError, "edges and callers must be in lists, got %R", object);
    return 0;
}

/* Add an object to a list, whose reference this takes over. Returns 0 with an exception. */
static int add(PyObject *list, PyObject *object)
{
    int right = object != NULL && PyList_Append(list, object) == 0;
    Py_XDECREF(object);
    return right;
}

/* Read an item later, if it was not reached before. Returns 0 with an exception. */
static int reach(Closure *c, PyObject *item)
{
    Py_ssize_t before = PySet_Size(c->seen);
    if (item == NULL || PySet_Add(c->seen, item) < 0)
        return 0;
    return PySet_Size(c->seen) == before || PyList_Append(c->pending, item) == 0;
}

/* Keep a prediction of a stack or of a rule, whose reference this takes over, and the callers that it
   holds. Returns 0 with an exception. */
static int keep(Closure *c, PyObject *prediction, PyObject *owner)
{
    int right = is_tuple(prediction, PREDICTION);
    for (int i = READS; right && i <= ONWARD; i++)
        right = is_list(PyTuple_GetItem(prediction, i));
    PyObject *calls = right ? PyTuple_GetItem(prediction, CALLS) : NULL;
    for (Py_ssize_t i = 0; right && i < PyList_Size(calls); i++) {
        PyObject *call = PyList_GetItem(calls, i), *list;
        if (!(right = is_tuple(call, CALL)))
            break;
        Py_INCREF(call);
        list = PyDict_GetItemWithError(c->callers, PyTuple_GetItem(call, RULE));
        Py_XINCREF(list);
        if (list == NULL && !PyErr_Occurred() && (list = PyList_New(0)) != NULL)
            right = PyDict_SetItem(c->callers, PyTuple_GetItem(call, RULE), list) == 0
                    && PyList_Append(c->rules, PyTuple_GetItem(call, RULE)) == 0;
        right = right && list != NULL
                && add(list, PyTuple_Pack(2, PyTuple_GetItem(call, AFTER), owner));
        Py_XDECREF(list);
        Py_DECREF(call);
    }
    if (right) {
        long size = number(prediction, SIZE, INT32_MAX);
        right = size >= 0;
        c->work += size;
    }
    right = right && add(c->predicted, PyTuple_Pack(2, prediction, owner));
    Py_XDECREF(prediction);
    return right;
}

/* Reach the callers of an item's rule, which may end. Returns 0 with an exception. */
static int complete(Closure *c, PyObject *stack)
{
    PyObject *ends = PyObject_GetAttrString(stack, "ends");
    PyObject *waiting = PyObject_GetAttrString(stack, "waiting"), *item;
    int ended = ends == NULL ? -1 : PyObject_IsTrue(ends);
    int right = ended >= 0 && waiting != NULL;
    if (right && !PyTuple_Check(waiting)) {
        PyErr_SetString(PyExc_TypeError, "callers must be a tuple");
        right = 0;
    }
    c->may_end |= ended;
    for (Py_ssize_t i = 0; right && i < PyTuple_Size(waiting); i++, c->work++) {
        item = PyTuple_GetItem(waiting, i);
        right = reach(c, item);
    }
    Py_XDECREF(ends);
    Py_XDECREF(waiting);
    return right;
}

/* Predict and complete an item. Returns 0 with an exception. */
static int follow(Closure *c, PyObject *item)
{
    if (!is_tuple(item, ITEM))
        return 0;
    PyObject *stack = PyTuple_GetItem(item, STACK);
    PyObject *prediction = PyObject_CallFunctionObjArgs(c->of_state, PyTuple_GetItem(item, STATE), NULL);
    Py_XINCREF(prediction);
    int right = keep(c, prediction, stack), ends = 0;
    PyObject *onward = right ? PyTuple_GetItem(prediction, ONWARD) : NULL;
    for (Py_ssize_t i = 0; right && i < PyList_Size(onward); i++) {
        PyObject *reached = named(c->item, PyTuple_Pack(2, PyList_GetItem(onward, i), stack));
        right = reach(c, reached);
        Py_XDECREF(reached);
    }
    if (right)
        right = (ends = PyObject_IsTrue(PyTuple_GetItem(prediction, ENDS))) >= 0;
    if (right && ends)
        right = complete(c, stack);
    Py_XDECREF(prediction);
    return right;
}

/* Add the thread that begins to read a terminal. Returns 0 with an exception. */
static int begin(Closure *c, PyObject *edge, PyObject *stack)
{
    if (!is_tuple(edge, EDGE))
        return 0;
    PyObject *terminal = PyTuple_GetItem(edge, TERMINAL), *zero = PyLong_FromLong(0);
    PyObject *start = PyDict_GetItemWithError(c->starts, terminal);
    Py_XINCREF(start);
    if (start == NULL && !PyErr_Occurred())
        start = PyObject_GetItem(c->starts, terminal);  /* which may make it */
    PyObject *onward = named(c->item, PyTuple_Pack(2, PyTuple_GetItem(edge, TO), stack));
    int right = 0;
    if (zero != NULL && start != NULL && onward != NULL)
        right = add(c->threads, named(c->thread, PyTuple_Pack(6, terminal, start, zero,
                                                              PyTuple_GetItem(edge, LOW),
                                                              PyTuple_GetItem(edge, HIGH), onward)));
    Py_XDECREF(zero);
    Py_XDECREF(start);
    Py_XDECREF(onward);
    return right;
}

/* Add the threads and items of a prediction. Returns 0 with an exception. */
static int enter(Closure *c, PyObject *prediction, PyObject *stack)
{
    PyObject *tokens = PyTuple_GetItem(prediction, TOKENS), *reads = PyTuple_GetItem(prediction, READS);
    int right = 1;
    for (Py_ssize_t i = 0; right && i < PyList_Size(tokens); i++)
        right = add(c->at_tokens,
                    named(c->item, PyTuple_Pack(2, PyList_GetItem(tokens, i), stack)));
    for (Py_ssize_t i = 0; right && i < PyList_Size(reads); i++) {
        PyObject *edge = PyList_GetItem(reads, i);
        Py_INCREF(edge);
        right = begin(c, edge, stack);
        Py_DECREF(edge);
    }
    return right;
}

/* Add the threads and items of all predictions. Returns 0 with an exception. */
static int enter_all(Closure *c)
{
    PyObject *nodes = NULL;
    int right = 1;
    if (PyDict_Size(c->callers)) {
        nodes = PyObject_CallFunctionObjArgs(c->of_rules, c->callers, NULL);
        right = nodes != NULL;
    }
    for (Py_ssize_t i = 0; right && i < PyList_Size(c->predicted); i++) {
        PyObject *pair = PyList_GetItem(c->predicted, i), *owner = PyTuple_GetItem(pair, 1), *stack;
        stack = PyLong_Check(owner) && nodes != NULL ? PyObject_GetItem(nodes, owner)
                                                     : Py_NewRef(owner);
        right = stack != NULL && enter(c, PyTuple_GetItem(pair, 0), stack);
        Py_XDECREF(stack);
    }
    Py_XDECREF(nodes);
    return right;
}

/* Predict and complete all items; then predict the rules that they call. Returns 0 with an exception;
   stops beyond `most`. */
static int predict(Closure *c, long most)
{
    int right = 1;
    for (Py_ssize_t last; right && c->work <= most && (last = PyList_Size(c->pending)) > 0;) {
        PyObject *item = PyList_GetItem(c->pending, last - 1);
        Py_INCREF(item);
        right = PyList_SetSlice(c->pending, last - 1, last, NULL) == 0 && follow(c, item);
        Py_DECREF(item);
    }
    for (Py_ssize_t i = 0; right && c->work <= most && i < PyList_Size(c->rules); i++) {
        PyObject *rule = PyList_GetItem(c->rules, i);
        right = keep(c, PyObject_CallFunctionObjArgs(c->of_rule, rule, NULL), rule);
    }
    return right;
}

/* Return the threads and items that items lead to, whether the text may end, and the work; None if it
   is beyond `most`. */
static PyObject *close_items(PyObject *module, PyObject *args)
{
    PyObject *items, *result = NULL;
    Closure c = {0};
    long most;
    (void)module;

    if (!PyArg_ParseTuple(args, "OOOOO!O!O!l", &items, &c.of_state, &c.of_rule, &c.of_rules,
                          &PyDict_Type, &c.starts, &PyType_Type, &c.item, &PyType_Type, &c.thread,
                          &most))
        return NULL;
    if (!are_tuples(c.item) || !are_tuples(c.thread))
        return NULL;
    c.pending = PySequence_List(items), c.seen = c.pending ? PySet_New(c.pending) : NULL;
    c.predicted = PyList_New(0), c.callers = PyDict_New(), c.rules = PyList_New(0);
    c.threads = PyList_New(0), c.at_tokens = PyList_New(0);
    if (c.seen && c.predicted && c.callers && c.rules && c.threads && c.at_tokens && predict(&c, most)) {
        if (c.work > most)
            result = Py_BuildValue("");
        else if (enter_all(&c))
            result = Py_BuildValue("OOOl", c.threads, c.at_tokens, c.may_end ? Py_True : Py_False,
                                   c.work);
    }
    Py_XDECREF(c.pending);
    Py_XDECREF(c.seen);
    Py_XDECREF(c.predicted);
    Py_XDECREF(c.callers);
    Py_XDECREF(c.rules);
    Py_XDECREF(c.threads);
    Py_XDECREF(c.at_tokens);
    return result;
}

static PyMethodDef methods[] = {
    {"close_items", close_items, METH_VARARGS, "Predict and complete items; see _closure.c."},
    {NULL, NULL, 0, NULL},
};

/* Add the function to the module. */
int add_closure(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
