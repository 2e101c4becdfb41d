/* The cells of an Earley parser: its states, each of which is built once, then found by look-up. */

#include "_parser.h"

#include <string.h>

enum { KERNEL_PARTS = 8 };  /* of a unit of work, for a state; and for each member that it reaches */
enum { MEMBERS = 32 };      /* of a cell, on average, beyond which fewer cells are kept */

/* Forget the next cells of a cell that leaves the table, and its object. */
static void cut(Cell *cell)
{
    Range *ranges = cell->ranges;
    int count = cell->range_count;
    PyObject *face = cell->face;
    cell->is_kept = 0;
    cell->ranges = NULL, cell->range_count = cell->range_room = 0, cell->face = NULL;
    for (int i = 0; i < count; i++)
        leave_cell(ranges[i].to);
    PyMem_Free(ranges);
    Py_XDECREF(face);
}

static void end(PyObject *self)
{
    Cell *cell = (Cell *)self;
    PyTypeObject *type = Py_TYPE(self);
    cut(cell);
    free_members(&cell->kernel);
    free_members(&cell->threads);
    free_members(&cell->items);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {{Py_tp_dealloc, end}, {0, NULL}};

static PyType_Spec spec = {
    "dlm.grammar._walk.Cell", sizeof(Cell), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots,
};

/* Return the type of cells. */
PyTypeObject *make_cell_type(PyObject *module)
{
    return (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
}

/* Return the number of ranges that begin before or at a byte. */
static int ranges_up_to(const Cell *cell, uint8_t byte)
{
    int low = 0, high = cell->range_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (cell->ranges[middle].low <= byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static Range *range_at(const Cell *cell, uint8_t byte)
{
    int number = ranges_up_to(cell, byte);
    Range *range = number ? &cell->ranges[number - 1] : NULL;
    return range != NULL && range->high >= byte ? range : NULL;
}

/* Note whether the bytes from `low` to `high`, with `byte` among them, are taken, and the cell that they
   lead to, if it is made. A cell that the table does not keep refers to none: nothing would cut them
   apart later. Returns 0 with an exception if there is no memory. */
static int note_range(Cell *cell, int low, int high, uint8_t byte, int taken, Cell *to)
{
    int number = ranges_up_to(cell, byte);
    Range *known = range_at(cell, byte);
    if (!cell->is_kept)
        to = NULL;
    if (known != NULL) {
        if (known->to == NULL && to != NULL)
            known->to = (Cell *)Py_NewRef((PyObject *)to);
        return 1;
    }
    if (number && cell->ranges[number - 1].high >= low)
        low = cell->ranges[number - 1].high + 1;
    if (number < cell->range_count && cell->ranges[number].low <= high)
        high = cell->ranges[number].low - 1;
    Range *ranges = with_room(cell->ranges, cell->range_count, &cell->range_room, sizeof *ranges);
    if (ranges == NULL)
        return 0;
    cell->ranges = ranges;
    memmove(&ranges[number + 1], &ranges[number],
            (size_t)(cell->range_count - number) * sizeof *ranges);
    ranges[number] = (Range){(uint8_t)low, (uint8_t)high, (uint8_t)taken, to};
    cell->range_count++;
    Py_XINCREF((PyObject *)to);
    return 1;
}

/* Whether two kernels, of which no member is there twice, have the same members in any order. */
static int same_kernel(const Members *a, const Members *b)
{
    if (a->count != b->count)
        return 0;
    int32_t i = 0;
    while (i < a->count && same_member(&a->members[i], &b->members[i]))
        i++;
    for (; i < a->count; i++)
        if (find(b, &a->members[i]) < 0)
            return 0;
    return 1;
}

/* Return the slot of a kernel, which may be empty. There must be room. */
static long slot_of(const States *states, const Members *kernel, uint64_t hash)
{
    long mask = states->room - 1, slot = (long)(hash & (uint64_t)mask);
    for (Cell *cell; (cell = states->cells[slot]) != NULL; slot = (slot + 1) & mask)
        if (cell->hash == hash && same_kernel(&cell->kernel, kernel))
            break;
    return slot;
}

/* Make slots for another cell. Returns 0 with an exception if there is no memory. */
static int make_slots(States *states)
{
    if (2 * states->count < states->room)
        return 1;
    long room = states->room ? 2 * states->room : 64;
    Cell **before = states->cells, **cells = PyMem_Calloc((size_t)room, sizeof *cells);
    if (cells == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (long i = 0; i < states->room; i++) {
        long slot = before[i] ? (long)(before[i]->hash & (uint64_t)(room - 1)) : 0;
        while (before[i] && cells[slot])
            slot = (slot + 1) & (room - 1);
        if (before[i])
            cells[slot] = before[i];
    }
    states->cells = cells, states->room = room;
    PyMem_Free(before);
    return 1;
}

/* Forget all cells: those that are in use have no next cells then. */
void forget_cells(States *states)
{
    Cell **cells = states->cells;
    long room = states->room;
    states->cells = NULL, states->count = states->room = 0, states->members = 0;
    for (long i = 0; i < room; i++)
        if (cells[i])
            cut(cells[i]);
    for (long i = 0; i < room; i++)
        leave_cell(cells[i]);
    PyMem_Free(cells);
}

/* Forget all cells and stack nodes. Returns 0 with an exception. */
int forget_states(States *states)
{
    forget_cells(states);
    PyObject *nothing = PyObject_CallMethod(states->stacks, "clear", NULL);
    Py_XDECREF(nothing);
    return nothing != NULL;
}

/* Forget all cells and stack nodes if there are too many cells, or too many members of them. Returns 0
   with an exception. */
static int make_room(States *states)
{
    int full = states->count >= states->most_states ||
               states->members >= (int64_t)MEMBERS * states->most_states;
    return !full || forget_states(states);
}

/* Note that the table keeps a cell. */
static void keep(States *states, Cell *cell)
{
    states->count++;
    states->members += (int64_t)cell->kernel.count + cell->threads.count + cell->items.count;
    cell->is_kept = 1;
}

/* Add the members of a list to another one. Returns 0 with an exception. */
static int add_all(Members *list, const Members *others)
{
    for (int32_t i = 0; i < others->count; i++)
        if (!add_new(list, &others->members[i]))
            return 0;
    return 1;
}

/* Predict and complete what the kernel of a cell leads to. Returns 0 with an exception. */
static int close_cell(States *states, Cell *cell, Work *work)
{
    Members begin = {0}, ends = {0};
    long read = 0;
    int right = 1;
    for (int32_t i = 0; right && i < cell->kernel.count; i++) {
        const Member *member = &cell->kernel.members[i];
        if (member->terminal == ITEM) {
            right = add_new(&begin, member);
            continue;
        }
        int may = ended(states, member);
        const Member onward = {.terminal = ITEM, .onward = member->onward, .stack = member->stack};
        right = may >= 0 && add_new(&cell->threads, member) && (!may || add_new(&ends, &onward));
    }
    right = right && add_all(&begin, &ends);
    if (right && begin.count)
        right = close_items(states, &begin, &cell->threads, &cell->items, &cell->may_end, &read) &&
                drop_dominated(states, &cell->threads);
    work->parts += KERNEL_PARTS * (1 + (int64_t)read) / 2;
    free_members(&begin);
    free_members(&ends);
    return right;
}

/* Return the cell of a kernel, which may be empty then: a new reference; NULL with an exception. */
Cell *cell_of(States *states, Members *kernel, Work *work)
{
    Cell *cell = NULL;
    uint64_t hash = 0;
    if (!drop_dominated(states, kernel))
        return NULL;
    for (int32_t i = 0; i < kernel->count; i++)
        hash += hash_of(&kernel->members[i]);
    if (states->room && (cell = states->cells[slot_of(states, kernel, hash)]) != NULL)
        return (Cell *)Py_NewRef((PyObject *)cell);
    if (!make_room(states))
        return NULL;
    const Module *module = PyType_GetModuleState(Py_TYPE((PyObject *)states));
    PyTypeObject *type = module->cell;
    cell = (Cell *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (cell == NULL)
        return NULL;
    cell->hash = hash, cell->kernel = *kernel;
    memset(kernel, 0, sizeof *kernel);
    if (!close_cell(states, cell, work) || !make_slots(states)) {
        leave_cell(cell);
        return NULL;
    }
    Cell **slot = &states->cells[slot_of(states, &cell->kernel, hash)];
    if (*slot != NULL) {  /* what was called made it meanwhile */
        Cell *known = (Cell *)Py_NewRef((PyObject *)*slot);
        leave_cell(cell);  /* this may clear the table */
        return known;
    }
    *slot = (Cell *)Py_NewRef((PyObject *)cell);
    keep(states, cell);
    return cell;
}

/* Count a step of threads. Returns 0 with an exception if no work is left. */
static int count_step(States *states, const Cell *cell, Work *work)
{
    if (work->parts / PARTS_OF_UNIT >= work->left) {
        if (!end_work(states, work))
            return 0;
        PyObject *nothing = PyObject_CallMethod(states->meter, "spend", "i", 0);
        Py_XDECREF(nothing);
        if (nothing == NULL || !begin_work(states, work))
            return 0;
    }
    work->parts += 1 + cell->threads.count / 4;
    return 1;
}

/* Return the cell that the table keeps of the kernel of one that it forgot: that one again if there is none
   by now. So the cells after it are kept, and work that ran out is not repeated forever. A new
   reference; NULL with an exception. */
static Cell *kept_again(States *states, Cell *cell)
{
    if (!make_room(states) || !make_slots(states))
        return NULL;
    Cell **slot = &states->cells[slot_of(states, &cell->kernel, cell->hash)];
    if (*slot == NULL) {
        *slot = (Cell *)Py_NewRef((PyObject *)cell);
        keep(states, cell);
    }
    return (Cell *)Py_NewRef((PyObject *)*slot);
}

/* Read a byte that no range is known for, or the cell after it if `make` is set. Returns whether the byte
   is taken; -1 with an exception. */
static int read_anew(States *states, Cell *cell, uint8_t byte, int make, Work *work, Cell **to)
{
    Members reached = {0};
    int begin = 0, end = 255;
    int right = count_step(states, cell, work) &&
                read_byte(states, &cell->threads, byte, &reached, &begin, &end, work);
    int taken = reached.count > 0;
    if (right && taken && make)
        right = (*to = cell_of(states, &reached, work)) != NULL;
    right = right && note_range(cell, begin, end, byte, taken, *to);
    free_members(&reached);
    if (right)
        return taken;
    leave_cell(*to);
    *to = NULL;
    return -1;
}

/* Find the cell after a byte: a new reference, or NULL if it is refused. Returns 0 with an exception. */
int cell_after(States *states, Cell *cell, uint8_t byte, Work *work, Cell **to)
{
    const Range *range = range_at(cell, byte);
    *to = NULL;
    if (range == NULL || (range->taken && range->to == NULL)) {
        if (cell->is_kept)
            return read_anew(states, cell, byte, 1, work, to) >= 0;
        Cell *kept = kept_again(states, cell);
        int right = kept != NULL && cell_after(states, kept, byte, work, to);
        leave_cell(kept);
        return right;
    }
    *to = range->to;
    Py_XINCREF((PyObject *)*to);
    return 1;
}

/* Whether a byte is taken; -1 with an exception. The cell after it is not made. */
int takes(States *states, Cell *cell, uint8_t byte, Work *work)
{
    const Range *range = range_at(cell, byte);
    Cell *none = NULL;
    return range ? range->taken : read_anew(states, cell, byte, 0, work, &none);
}
