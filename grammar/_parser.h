/* What the files of the parser share: threads and items, sets of them, and the table of states. */

#ifndef DLM_PARSER_H
#define DLM_PARSER_H

#include "_shared.h"

/* A state of a network. */
typedef struct {
    int64_t number;   /* the hash of a number that has no place here */
    PyObject *large;  /* such a number; else NULL */
} Place;

enum { ITEM = -1 };   /* in place of a terminal */

/* A thread, which reads a terminal; or an item: a network state with its stack node. */
typedef struct {
    int32_t terminal, at;  /* and a state of its scanner */
    int32_t bounds;        /* the number of a pair (low, high) of characters; 0: there are none */
    int64_t read;          /* characters so far; 0 if their number is not bounded */
    Place onward;          /* after the terminal; or the item's own */
    PyObject *stack;
} Member;

/* A list of members, which owns references to their stacks and places. */
typedef struct {
    Member *members;
    int32_t count, room;
    int32_t *slots;        /* 1 + a member, by hash; NULL while there are few */
    int32_t slots_room;    /* a power of two */
} Members;

typedef struct Prediction Prediction;
typedef struct Cell Cell;

/* The bytes from `low` to `high` are refused, or lead to one cell. */
typedef struct {
    uint8_t low, high, taken;
    Cell *to;           /* NULL if they are refused, or if the cell was not made yet */
} Range;

/* A state. */
struct Cell {
    PyObject_HEAD
    uint64_t hash;
    Members kernel;     /* what the state was built from */
    Members threads, items;
    int may_end;        /* the text may end here */
    int is_kept;        /* by the table; else it has no object, and its ranges have no cells */
    Range *ranges;      /* known next cells, in the order of their bytes */
    int32_t range_count, range_room;
    PyObject *face;     /* the state in Python; NULL: there is none yet */
};

/* A terminal. Its text, if it is a literal: then a thread's state is the number of bytes read. Else
   two lists by state, which are those of its scanner, and a function. One list holds the moves
   (first byte, last byte, next state) in their order, and None in place of those that the function
   returns. The other list holds whether a text may end in the state. */
typedef struct {
    PyObject *object;      /* what holds the rest; NULL: it is not known yet */
    const char *text;      /* NULL if the terminal is no literal */
    Py_ssize_t length;
    PyObject *moves, *final, *ask;
    long start;            /* the scanner's first state */
} Terminal;

/* Predictions by network state, or by rule. */
typedef struct {
    struct {
        Place key;
        Prediction *prediction;
    } *slots;
    int32_t count, room;   /* `room` is a power of two, or 0 */
} Predictions;

/* Attributes of stack nodes, states, meters and stacks. */
enum { WAITING_NAME, ENDS_NAME, CELL_NAME, SPENT_NAME, LIMIT_NAME, OF_CALLER_NAME, NAMES };

/* The states of one grammar. */
typedef struct {
    PyObject_HEAD
    PyObject *tables, *starts;       /* of terminals, and their first states, by number */
    PyObject *move;                  /* moves a thread with bounds */
    PyObject *of_state, *of_rule;    /* predictions */
    PyObject *stacks, *costs, *meter;
    PyObject *state, *thread, *item; /* classes */
    PyObject *refuse;                /* raises that a state takes too much work */
    PyObject *names[NAMES];
    int64_t parts;                   /* of a unit of work, that are not counted yet */
    long most_states, most_work;
    PyObject *numbers;               /* of pairs of bounds, by pair */
    PyObject *pairs;                 /* by number */
    Terminal *terminals;
    long terminal_count;
    Predictions by_state, by_rule;
    long edges;                      /* of all predictions */
    Cell **cells;                    /* by the hashes of their kernels */
    long count, room;                /* `room` is a power of two */
    int64_t members;                 /* of all cells, in their three lists */
} States;

/* Work that is counted in units of about 10 us, and as parts of them. */
enum { PARTS_OF_UNIT = 16 };
typedef struct {
    int64_t parts, left;   /* done, and allowed */
} Work;

/* Of _states.c. */
int begin_work(States *states, Work *work);
int end_work(States *states, Work *work);
Cell *cell_of_state(States *states, PyObject *state);
void leave_cell(Cell *cell);

/* Of _cells.c. */
Cell *cell_of(States *states, Members *kernel, Work *work);
int cell_after(States *states, Cell *cell, uint8_t byte, Work *work, Cell **to);
int takes(States *states, Cell *cell, uint8_t byte, Work *work);
int forget_states(States *states);
void forget_cells(States *states);
PyTypeObject *make_cell_type(PyObject *module);

/* Of _members.c. */
int same_place(const Place *a, const Place *b);
uint64_t hash_of_place(const Place *place);
int read_place(PyObject *number, Place *place);
PyObject *place_object(const Place *place);
uint64_t hash_of(const Member *member);
int same_member(const Member *a, const Member *b);
int32_t find(const Members *list, const Member *member);
void *with_room(void *array, int32_t count, int32_t *room, size_t size);
int add_new(Members *list, const Member *member);
void free_members(Members *list);
int read_member(States *states, PyObject *object, Member *member);
PyObject *item_object(const States *states, const Place *place, PyObject *stack);
PyObject *thread_object(const States *states, const Member *thread);
int bounds_of(States *states, PyObject *low, PyObject *high);
int has_enough(const States *states, const Member *thread);
int drop_dominated(const States *states, Members *list);

/* Of _threads.c. */
int find_terminal(States *states, int32_t number, Terminal *terminal);
int ended(States *states, const Member *thread);
int read_byte(States *states, const Members *threads, int byte, Members *reached, int *begin, int *end,
              Work *work);

/* Of _closure.c. */
int close_items(States *states, const Members *begin, Members *threads, Members *items, int *may_end,
                long *work);
void forget_predictions(States *states);

#endif
