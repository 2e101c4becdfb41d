/* Walks of random tries by random tables, compared with walks by recursion. For sanitizers:
   every array has its own allocation of exactly its size. The argument is the number of walks. */

#define WITHOUT_PYTHON
#include "_walk.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 5, MOST_NODES = 400, MOST_STATES = 12 };

static uint64_t seed = 1;

static int64_t drawn(int64_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (int64_t)(seed % (uint64_t)below);
}

static void *array(int64_t count, int64_t size)
{
    void *made = malloc((size_t)(count * size));
    if (count * size > 0 && made == NULL)
        exit(2);
    return made;
}

typedef struct {
    uint8_t *byte;
    int32_t *size, *depth, *first, *tokens;
    int32_t nodes, deepest;
} Drawn;

/* Return a random trie in preorder. Siblings may have equal bytes, which a walk does not mind. */
static Drawn trie_of(void)
{
    int32_t n = 1 + (int32_t)drawn(MOST_NODES);
    Drawn t = {array(n, 1), array(n, 4), array(n, 4), array(n + 1, 4), NULL, n, 0};
    t.byte[0] = 0, t.depth[0] = 0;
    for (int32_t i = 1; i < n; i++) {
        t.depth[i] = 1 + (int32_t)drawn(t.depth[i - 1] + 1);
        t.byte[i] = (uint8_t)drawn(BYTES);
        if (t.depth[i] > t.deepest)
            t.deepest = t.depth[i];
    }
    for (int32_t i = n - 1; i >= 0; i--) {
        int32_t next = i + 1;
        while (next < n && t.depth[next] > t.depth[i])
            next += t.size[next];
        t.size[i] = next - i;
    }
    t.first[0] = 0;
    for (int32_t i = 0; i < n; i++)
        t.first[i + 1] = t.first[i] + (i ? (int32_t)drawn(3) : 0);
    t.tokens = array(t.first[n], 4);
    for (int32_t i = 0; i < t.first[n]; i++)
        t.tokens[i] = i;
    return t;
}

static const Drawn *trie;
static const int32_t *moves;
static const uint8_t *is_final;
static uint8_t *expected_tokens, *expected_ends;
static int64_t expected_read;

/* Read the subtree of `node` from `state`. */
static void read_by_recursion(int32_t node, int32_t state)
{
    int32_t after = moves[state * BYTES + trie->byte[node]];
    expected_read++;
    if (after < 0)
        return;
    for (int32_t i = trie->first[node]; i < trie->first[node + 1]; i++)
        expected_tokens[trie->tokens[i]] = 1;
    if (is_final[after] && trie->size[node] > 1)
        expected_ends[node]++;
    for (int32_t child = node + 1; child < node + trie->size[node]; child += trie->size[child])
        read_by_recursion(child, after);
}

static int fails(const char *what)
{
    fprintf(stderr, "%s differs\n", what);
    return 1;
}

static int one_walk(void)
{
    Drawn t = trie_of();
    int32_t states = 1 + (int32_t)drawn(MOST_STATES), n = t.nodes;
    int32_t *to = array(states * BYTES, 4), *written = array(states * BYTES, 4);
    uint8_t *final = array(states, 1), column[256] = {0};
    for (int i = 0; i < BYTES; i++)
        column[i] = (uint8_t)i;
    for (int32_t i = 0; i < states * BYTES; i++)
        to[i] = (int32_t)drawn(states + 2) - 2 < 0 ? NOWHERE : (int32_t)drawn(states);
    for (int32_t i = 0; i < states; i++)
        final[i] = (uint8_t)drawn(2);
    for (int32_t i = 0; i < states * BYTES; i++)
        written[i] = UNWRITTEN;

    int32_t ranges = n > 1 ? (int32_t)drawn(4) : 0, state = (int32_t)drawn(states);
    int32_t *begin = array(ranges, 4), *end = array(ranges, 4);
    trie = &t, moves = to, is_final = final, expected_read = 0;
    expected_tokens = calloc((size_t)t.first[n] + 1, 1), expected_ends = calloc((size_t)n, 1);
    for (int32_t i = 0; i < ranges; i++) {
        begin[i] = 1 + (int32_t)drawn(n - 1);
        end[i] = begin[i] + t.size[begin[i]];
        read_by_recursion(begin[i], state);
        while (drawn(2) && end[i] < n && t.depth[end[i]] == t.depth[begin[i]]) {
            read_by_recursion(end[i], state);
            end[i] += t.size[end[i]];
        }
    }

    int64_t words = (t.first[n] + 31) / 32, most = 1 + drawn(6), cursor[CURSOR] = {0};
    uint32_t *bits = calloc((size_t)words + 1, 4);
    int32_t *stack = array(t.deepest + 2, 4), *listed = array(most, 4), outcome;
    uint8_t *ends = calloc((size_t)n, 1);
    Trie arrays = {t.byte, t.size, t.depth, t.first, t.tokens};
    Table table = {column, written, final, BYTES, states};
    do {
        outcome = walk(&arrays, &table, state, begin, end, ranges, cursor, stack, t.deepest + 2, bits,
                       listed, most);
        if (outcome == OUTSIDE)
            return fails("a depth or a state");
        if (outcome >= 0)
            memcpy(written + outcome * BYTES, to + outcome * BYTES, BYTES * 4);
        else {
            for (int64_t i = 0; i < cursor[ENDS]; i++)
                ends[listed[i]]++;
            cursor[ENDS] = 0;
        }
    } while (outcome != DONE);

    if (cursor[READ] != expected_read)
        return fails("the count of nodes");
    if (memcmp(ends, expected_ends, (size_t)n))
        return fails("an end");
    for (int32_t i = 0; i < t.first[n]; i++)
        if ((bits[i >> 5] >> (i & 31) & 1) != expected_tokens[i])
            return fails("a token");

    if (ranges && n > 1) {  /* a stack that is too short, and a state without a row */
        int64_t again[CURSOR] = {0};
        if (walk(&arrays, &table, states, begin, end, ranges, again, stack, t.deepest + 2, bits,
                 listed, most) != OUTSIDE)
            return fails("a state beyond the table");
        memset(again, 0, sizeof again);
        if (walk(&arrays, &table, state, begin, end, ranges, again, stack, 1, bits, listed, most)
            != OUTSIDE)
            return fails("a stack of one number");
    }
    free(t.byte), free(t.size), free(t.depth), free(t.first), free(t.tokens);
    free(to), free(written), free(final), free(begin), free(end), free(expected_tokens);
    free(expected_ends), free(bits), free(stack), free(listed), free(ends);
    return 0;
}

int main(int count, char **arguments)
{
    int walks = count > 1 ? atoi(arguments[1]) : 100;
    for (int i = 0; i < walks; i++)
        if (one_walk())
            return 1;
    printf("%d walks\n", walks);
    return 0;
}
