/* Closures of kernels: what an Earley parser predicts and completes with nothing read. */

#include "_parser.h"

#include <string.h>

enum { READS, TOKENS, CALLS, ONWARD, ENDS, SIZE, PREDICTION };      /* of a prediction in Python */
enum { TERMINAL, TO, LOW, HIGH, EDGE };                             /* of an edge of `READS` */
enum { RULE, AFTER, CALL };                                         /* of a call */
enum { MOST_EDGES = 1 << 16 };                                      /* of all that are kept */

/* An edge that reads a terminal, or a call of a rule, or the state alone. */
typedef struct {
    long number;   /* of the terminal or rule */
    int bounds;
    Place to;
} Edge;

/* What may come next in one rule, from one or several of its states. */
struct Prediction {
    int users;     /* closures that read it, and the table that keeps it */
    int ends;      /* whether the rule may end here */
    long size;
    int32_t begin[ONWARD + 2]; /* in `edges`: of reads, tokens, calls and others; and their end */
    Edge edges[1];
};

static void leave(Prediction *prediction)
{
    if (prediction == NULL || --prediction->users)
        return;
    for (int32_t i = 0; i < prediction->begin[ONWARD + 1]; i++)
        Py_XDECREF(prediction->edges[i].to.large);
    PyMem_Free(prediction);
}

static void forget(Predictions *predictions)
{
    Predictions freed = *predictions;
    memset(predictions, 0, sizeof *predictions);
    for (int32_t i = 0; i < freed.room; i++)
        if (freed.slots[i].prediction != NULL) {
            Py_XDECREF(freed.slots[i].key.large);
            leave(freed.slots[i].prediction);
        }
    PyMem_Free(freed.slots);
}

void forget_predictions(States *states)
{
    forget(&states->by_state);
    forget(&states->by_rule);
    states->edges = 0;
}

/* Return the slot of a key, which may be empty. */
static int32_t slot_of(const Predictions *predictions, const Place *key)
{
    uint32_t mask = (uint32_t)predictions->room - 1, slot = (uint32_t)hash_of_place(key) & mask;
    while (predictions->slots[slot].prediction && !same_place(&predictions->slots[slot].key, key))
        slot = (slot + 1) & mask;
    return (int32_t)slot;
}

/* Keep a prediction. Returns 0 with an exception if there is no memory. */
static int keep(Predictions *predictions, const Place *key, Prediction *prediction)
{
    if (2 * predictions->count >= predictions->room) {
        Predictions grown = {NULL, predictions->count, predictions->room ? 2 * predictions->room : 16};
        grown.slots = PyMem_Calloc((size_t)grown.room, sizeof *grown.slots);
        if (grown.slots == NULL) {
            PyErr_NoMemory();
            return 0;
        }
        for (int32_t i = 0; i < predictions->room; i++)
            if (predictions->slots[i].prediction)
                grown.slots[slot_of(&grown, &predictions->slots[i].key)] = predictions->slots[i];
        PyMem_Free(predictions->slots);
        *predictions = grown;
    }
    int32_t slot = slot_of(predictions, key);
    if (predictions->slots[slot].prediction)
        return 1;  /* another thread was faster */
    predictions->slots[slot].key = *key, predictions->slots[slot].prediction = prediction;
    Py_XINCREF(key->large);
    predictions->count++, prediction->users++;
    return 1;
}

/* Read an edge of one of the lists of a prediction in Python; its places own their references.
   Returns 0 with an exception. */
static int read_edge(States *states, int list, PyObject *object, Edge *edge)
{
    PyObject *to = object;
    *edge = (Edge){0};
    if (list == READS || list == CALLS) {
        if (!is_tuple(object, list == READS ? EDGE : CALL))
            return 0;
        edge->number = PyLong_AsLong(PyTuple_GetItem(object, list == READS ? TERMINAL : RULE));
        if (edge->number < 0 || edge->number > INT32_MAX) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "terminals and rules must be small numbers");
            return 0;
        }
        to = PyTuple_GetItem(object, list == READS ? TO : AFTER);
    }
    if (list == READS) {
        PyObject *low = PyTuple_GetItem(object, LOW), *high = PyTuple_GetItem(object, HIGH);
        if ((edge->bounds = bounds_of(states, low, high)) < 0)
            return 0;
    }
    if (!read_place(to, &edge->to))
        return 0;
    Py_XINCREF(edge->to.large);
    return 1;
}

/* Read a prediction in Python. Returns NULL with an exception. */
static Prediction *read_prediction(States *states, PyObject *object)
{
    Py_ssize_t count = 0;
    if (!is_tuple(object, PREDICTION))
        return NULL;
    for (int list = READS; list <= ONWARD; list++) {
        PyObject *edges = PyTuple_GetItem(object, list);
        if (!PyList_Check(edges)) {
            PyErr_Format(PyExc_TypeError, "edges must be in lists, got %R", edges);
            return NULL;
        }
        count += PyList_Size(edges);
    }
    int ends = PyObject_IsTrue(PyTuple_GetItem(object, ENDS));
    long size = PyLong_AsLong(PyTuple_GetItem(object, SIZE));
    if (ends < 0 || (size == -1 && PyErr_Occurred()))
        return NULL;
    if (count > INT32_MAX / (Py_ssize_t)sizeof(Edge) || size < 0 || size > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the size of a prediction must be a small number");
        return NULL;
    }
    Prediction *made = PyMem_Calloc(1, sizeof *made + (size_t)count * sizeof(Edge));
    if (made == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    made->users = 1, made->ends = ends, made->size = size;
    int32_t at = 0;
    int right = 1;
    for (int list = READS; right && list <= ONWARD; list++) {
        PyObject *edges = PyTuple_GetItem(object, list);
        for (Py_ssize_t i = 0; right && i < PyList_Size(edges) && at < count; i++) {
            PyObject *edge = Py_NewRef(PyList_GetItem(edges, i));  /* reading it may change the list */
            right = read_edge(states, list, edge, &made->edges[at]);
            at += right;
            Py_DECREF(edge);
        }
        made->begin[list + 1] = at;
    }
    if (right)
        return made;
    made->begin[ONWARD + 1] = at;
    leave(made);
    return NULL;
}

/* Return the prediction of a network state, or of a rule: a new reference; NULL with an exception. */
static Prediction *prediction_of(States *states, Predictions *kept, const Place *key, PyObject *ask)
{
    if (kept->room) {
        Prediction *known = kept->slots[slot_of(kept, key)].prediction;
        if (known != NULL) {
            known->users++;
            return known;
        }
    }
    PyObject *number = place_object(key), *object = NULL;
    Prediction *made = NULL;
    if (number != NULL && (object = PyObject_CallFunctionObjArgs(ask, number, NULL)) != NULL)
        made = read_prediction(states, object);
    Py_XDECREF(number);
    Py_XDECREF(object);
    if (made == NULL)
        return NULL;
    if (states->edges >= MOST_EDGES)
        forget_predictions(states);
    states->edges += 1 + made->begin[ONWARD + 1];
    if (keep(kept, key, made))
        return made;
    leave(made);
    return NULL;
}

/* A prediction with its stack; or, while that is not known yet, with the number of its rule. */
typedef struct {
    Prediction *prediction;
    PyObject *stack;
} Predicted;

typedef struct {
    States *states;
    Members seen;            /* items */
    int32_t *pending;        /* those that are still to be read, the last ones first */
    int32_t pending_count, pending_room;
    Predicted *predicted;
    int32_t predicted_count, predicted_room;
    const Edge *call;        /* the first call of a rule; NULL: there is none */
    PyObject *caller;        /* its stack */
    PyObject *callers;       /* lists by rule, in the order of their first calls; NULL up to one call */
    PyObject *rules;         /* rules in that order */
    long work;
    int may_end;
} Closure;

/* Read an item later, if it was not reached before. Returns 0 with an exception. */
static int reach(Closure *c, const Place *state, PyObject *stack)
{
    const Member item = {.terminal = ITEM, .onward = *state, .stack = stack};
    int32_t before = c->seen.count;
    if (!add_new(&c->seen, &item))
        return 0;
    if (c->seen.count == before)
        return 1;
    int32_t *pending = with_room(c->pending, c->pending_count, &c->pending_room, sizeof *pending);
    if (pending == NULL)
        return 0;
    c->pending = pending;
    pending[c->pending_count++] = before;
    return 1;
}

/* Add a call to the lists of calls. Returns 0 with an exception. */
static int add_call(Closure *c, const Edge *call, PyObject *owner)
{
    PyObject *rule = PyLong_FromLong(call->number), *after = place_object(&call->to), *pair = NULL;
    PyObject *callers = NULL;
    int right = rule && after && (pair = PyTuple_Pack(2, after, owner)) != NULL;
    if (right && (callers = PyDict_GetItemWithError(c->callers, rule)) != NULL)
        Py_INCREF(callers);
    else if (right && !PyErr_Occurred() && (callers = PyList_New(0)) != NULL)
        right = PyDict_SetItem(c->callers, rule, callers) == 0 && PyList_Append(c->rules, rule) == 0;
    right = right && callers != NULL && PyList_Append(callers, pair) == 0;
    Py_XDECREF(callers);
    Py_XDECREF(pair);
    Py_XDECREF(after);
    Py_XDECREF(rule);
    return right;
}

/* Note a call of a rule from a stack, or from another rule. Most closures have one at most, for which no
   list is made. Returns 0 with an exception. */
static int note_call(Closure *c, const Edge *call, PyObject *owner)
{
    if (c->call == NULL) {
        c->call = call, c->caller = owner;  /* the predictions keep both */
        return 1;
    }
    if (c->callers == NULL) {
        c->callers = PyDict_New(), c->rules = PyList_New(0);
        if (c->callers == NULL || c->rules == NULL || !add_call(c, c->call, c->caller))
            return 0;
    }
    return add_call(c, call, owner);
}

/* Keep a prediction, whose reference this takes over, and note its calls. `owner` is its stack, or the
   number of its rule. Returns 0 with an exception. */
static int predict(Closure *c, Prediction *prediction, PyObject *owner)
{
    Predicted *predicted = with_room(c->predicted, c->predicted_count, &c->predicted_room,
                                     sizeof *predicted);
    if (predicted == NULL) {
        leave(prediction);
        return 0;
    }
    c->predicted = predicted;
    predicted[c->predicted_count++] = (Predicted){prediction, Py_NewRef(owner)};
    c->work += prediction->size;
    for (int32_t i = prediction->begin[CALLS]; i < prediction->begin[CALLS + 1]; i++)
        if (!note_call(c, &prediction->edges[i], owner))
            return 0;
    return 1;
}

/* Reach the callers of a rule that may end. Returns 0 with an exception. */
static int complete(Closure *c, PyObject *stack)
{
    PyObject *ends = PyObject_GetAttr(stack, c->states->names[ENDS_NAME]);
    PyObject *waiting = PyObject_GetAttr(stack, c->states->names[WAITING_NAME]);
    int ended = ends == NULL ? -1 : PyObject_IsTrue(ends), right = ended >= 0 && waiting != NULL;
    if (right && !PyTuple_Check(waiting)) {
        PyErr_SetString(PyExc_TypeError, "callers must be a tuple");
        right = 0;
    }
    c->may_end |= ended > 0;
    for (Py_ssize_t i = 0; right && i < PyTuple_Size(waiting); i++, c->work++) {
        Member item;
        right = read_member(c->states, PyTuple_GetItem(waiting, i), &item) &&
                reach(c, &item.onward, item.stack);
    }
    Py_XDECREF(ends);
    Py_XDECREF(waiting);
    return right;
}

/* Predict and complete an item. Returns 0 with an exception. */
static int follow(Closure *c, int32_t number)
{
    const Member item = c->seen.members[number];  /* the list keeps its references */
    States *states = c->states;
    Prediction *made = prediction_of(states, &states->by_state, &item.onward, states->of_state);
    if (made == NULL || !predict(c, made, item.stack))
        return 0;
    for (int32_t i = made->begin[ONWARD]; i < made->begin[ONWARD + 1]; i++)
        if (!reach(c, &made->edges[i].to, item.stack))
            return 0;
    return !made->ends || complete(c, item.stack);
}

/* Return the number of rules that are called. */
static Py_ssize_t called_rules(const Closure *c)
{
    return c->rules ? PyList_Size(c->rules) : c->call != NULL;
}

/* Predict and complete all items, then predict the rules that they call; stops beyond `most` work.
   Returns 0 with an exception. */
static int follow_all(Closure *c, long most)
{
    while (c->pending_count && c->work <= most)
        if (!follow(c, c->pending[--c->pending_count]))
            return 0;
    for (Py_ssize_t i = 0; c->work <= most && i < called_rules(c); i++) {
        const Place key = {c->rules ? PyLong_AsLong(PyList_GetItem(c->rules, i)) : c->call->number, NULL};
        States *states = c->states;
        PyObject *rule = place_object(&key);
        Prediction *made = NULL;
        if (rule != NULL)
            made = prediction_of(states, &states->by_rule, &key, states->of_rule);
        int right = made != NULL && predict(c, made, rule);
        Py_XDECREF(rule);
        if (!right)
            return 0;
    }
    return 1;
}

/* Return the stack of a rule that is called once: a new reference; NULL with an exception. */
static PyObject *stack_of_call(const Closure *c)
{
    const States *states = c->states;
    PyObject *item = item_object(states, &c->call->to, c->caller), *stack = NULL;
    if (item != NULL)
        stack = PyObject_CallMethodObjArgs(states->stacks, states->names[OF_CALLER_NAME], item, NULL);
    Py_XDECREF(item);
    return stack;
}

/* Put the stacks of rules in the place of their numbers. Returns 0 with an exception. */
static int find_stacks(Closure *c)
{
    if (c->call == NULL)
        return 1;
    PyObject *nodes = c->callers == NULL ? stack_of_call(c) :
                      PyObject_CallMethod(c->states->stacks, "of_rules", "O", c->callers);
    int right = nodes != NULL;
    for (int32_t i = 0; right && i < c->predicted_count; i++) {
        PyObject *owner = c->predicted[i].stack;
        if (!PyLong_Check(owner))
            continue;
        c->predicted[i].stack = c->callers == NULL ? Py_NewRef(nodes) : PyObject_GetItem(nodes, owner);
        right = c->predicted[i].stack != NULL;
        Py_DECREF(owner);
    }
    Py_XDECREF(nodes);
    return right;
}

/* Add the threads and the items at control tokens of all predictions. Returns 0 with an exception. */
static int enter_all(Closure *c, Members *threads, Members *items)
{
    for (int32_t i = 0; i < c->predicted_count; i++) {
        const Prediction *made = c->predicted[i].prediction;
        Member member = {.terminal = ITEM, .stack = c->predicted[i].stack};
        for (int32_t j = made->begin[TOKENS]; j < made->begin[TOKENS + 1]; j++) {
            member.onward = made->edges[j].to;
            if (!add_new(items, &member))
                return 0;
        }
        for (int32_t j = made->begin[READS]; j < made->begin[READS + 1]; j++) {
            Terminal terminal;
            member.onward = made->edges[j].to, member.bounds = made->edges[j].bounds;
            member.terminal = (int32_t)made->edges[j].number;
            if (!find_terminal(c->states, member.terminal, &terminal))
                return 0;
            member.at = (int32_t)terminal.start;
            if (!add_new(threads, &member))
                return 0;
        }
    }
    return 1;
}

/* Add what items lead to with nothing read: threads, and items at edges that read control tokens. Sets
   whether the text may end, and the work. Returns 1; 0 with an exception, also if it takes more work
   than it may. */
int close_items(States *states, const Members *begin, Members *threads, Members *items, int *may_end,
                long *work)
{
    Closure c = {.states = states};
    int right = 1;
    for (int32_t i = 0; right && i < begin->count; i++)
        right = reach(&c, &begin->members[i].onward, begin->members[i].stack);
    right = right && follow_all(&c, states->most_work);
    if (right && c.work > states->most_work) {
        PyObject *nothing = PyObject_CallNoArgs(states->refuse);
        if (nothing != NULL)
            PyErr_SetString(PyExc_RuntimeError, "what refuses a state must raise an exception");
        Py_XDECREF(nothing);
        right = 0;
    }
    right = right && find_stacks(&c) && enter_all(&c, threads, items);
    *may_end = c.may_end, *work = c.work;
    for (int32_t i = 0; i < c.predicted_count; i++) {
        leave(c.predicted[i].prediction);
        Py_XDECREF(c.predicted[i].stack);
    }
    PyMem_Free(c.predicted);
    PyMem_Free(c.pending);
    free_members(&c.seen);
    Py_XDECREF(c.callers);
    Py_XDECREF(c.rules);
    return right;
}
