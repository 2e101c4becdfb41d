/* What the files of the extension share: a set of tokens that is being made, and functions. */

#ifndef DLM_SHARED_H
#define DLM_SHARED_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>

/* A set of tokens that is being made, as packed bits: zeros to begin with. */
typedef struct {
    uint32_t *words;
    int32_t *touched;    /* the words that hold bits, in the order of their first ones */
    Py_ssize_t count;    /* the number of those */
    Py_ssize_t width;    /* words of a set */
    int whole;           /* whether words may hold bits without being listed as touched */
} Draft;

/* Add a token, of which `draft` has a bit. */
static inline void add_token(Draft *draft, int32_t token)
{
    uint32_t *word = draft->words + (token >> 5);
    if (!*word && !draft->whole)
        draft->touched[draft->count++] = token >> 5;
    *word |= (uint32_t)1 << (token & 31);
}

/* The state of the module: its types, and memory that is used again. */
enum { SPARE = 4 };
typedef struct {
    PyTypeObject *trie, *rows, *states, *cell;
    struct {
        uint32_t *words;  /* zeros; NULL: there is none */
        size_t bytes;
    } spare[SPARE];       /* the latest first */
} Module;

/* Of _walk.c. */
int of_numbers(const Py_buffer *buffer, Py_ssize_t size);

/* Of _trie.c. */
PyTypeObject *make_trie_type(PyObject *module);
int64_t read_below(PyObject *trie, PyObject *begin, PyObject *states, Draft *draft);

/* Of _members.c. */
int is_tuple(PyObject *object, Py_ssize_t size);
PyObject *named(PyObject *class, PyObject *fields);

/* Of _states.c. */
int make_state_types(PyObject *module, Module *types);

/* Of _words.c. */
PyObject *automaton_of_words(PyObject *module, PyObject *arguments);

/* Of _costs.c. */
PyObject *least_costs(PyObject *module, PyObject *arguments);

/* Of _rows.c. */
int add_each(Draft *draft, PyObject *sets);
PyTypeObject *make_rows_type(PyObject *module);
void free_spare_memory(Module *state);

#endif
