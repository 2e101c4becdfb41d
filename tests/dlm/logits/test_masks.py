"""Masks of several grammars in one table: each is sent once, and found again."""

import gc

import numpy as np
import torch

from dlm.grammar.masks import tokens_in
from dlm.kernels.vocab import vocab_pass
from dlm.logits.canvas_logits import CANDIDATES, THRESHOLD, DeviceCopies
from dlm.logits.masks import MaskedRows, MaskTable, changed_by_masks

WORDS = 3


def grammar(seed, rows=6, words=WORDS):
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (rows, words), generator=rng).int()


def placed(table, wanted, link):
    """Places of `wanted`, where it is seen that the right words are."""
    places = table.place(wanted, link)
    rows = [bitmask[row, :WORDS] for bitmask, rows in wanted for row in rows]
    assert torch.equal(table.bitmask[places], torch.stack(rows))
    return places


def link():
    return DeviceCopies(torch.device("cpu"))


def test_a_mask_is_sent_once_however_often_it_is_wanted():
    table, one, other, copies = MaskTable(WORDS), grammar(1), grammar(2), link()
    first = placed(table, [(one, [0, 4, 0]), (other, [0]), (one, [4])], copies)
    assert copies.count == 1
    assert table.count == 3
    assert first[0] == first[2]

    again = placed(table, [(other, [0]), (one, [4])], copies)
    assert again == [first[3], first[1]]
    assert copies.count == 1

    placed(table, [(other, [0, 5])], copies)
    assert copies.count == 2
    assert table.count == 4


def test_a_full_table_begins_anew_with_what_is_wanted_now():
    table, one, copies = MaskTable(WORDS, rows=4), grammar(1), link()
    placed(table, [(one, [0, 1, 2])], copies)
    placed(table, [(one, [2, 3, 4])], copies)
    assert table.count == 3
    assert len(table.bitmask) == 4
    placed(table, [(one, [0, 1])], copies)
    assert table.count == 2


def test_a_step_that_wants_more_than_the_table_holds_gets_it():
    table, one = MaskTable(WORDS, rows=4), grammar(1, rows=9)
    placed(table, [(one, range(9))], link())
    assert len(table.bitmask) == 9
    placed(table, [(one, [3]), (grammar(2), [1])], link())
    assert table.count == 2


def test_a_grammar_that_is_gone_is_not_taken_for_another():
    table = MaskTable(WORDS)
    for seed in range(5):
        placed(table, [(grammar(seed), [2])], link())
        gc.collect()
    assert table.count == 5


def test_words_after_the_vocabulary_are_not_kept():
    table, wide = MaskTable(WORDS), grammar(1, words=WORDS + 4)
    placed(table, [(wide, [1])], link())
    assert table.bitmask.shape[1] == WORDS


def test_rows_of_several_canvases_change_as_those_of_each_alone():
    """Each canvas has a table of its own; one has no rows. Some rows list one token alone, and draw
    another."""
    size, rng = 32 * WORDS, np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=(40, size)) * rng.choice([1, 9, 40, 400], (40, 1)))
    heat, uniform = torch.ones(40), torch.tensor(rng.random(40)).float()
    options = {"threshold": THRESHOLD, "k": CANDIDATES}
    results = vocab_pass(logits.float(), heat, uniform, None, None, softcap=None, **options)
    sure = np.flatnonzero(results.above == 1)[::2]
    results.draw[sure] = (results.argmax[sure] + 1) % size
    parts = []
    for begin, end in [(0, 9), (9, 9), (9, 30), (33, 40)]:
        bitmask, masks = grammar(end), rng.integers(6, size=end - begin)
        bitmask[torch.tensor(rng.integers(2, size=6)).bool()] = -1
        guess = results.argmax[begin:end].numpy().copy()
        for i, mask in enumerate(masks):  # one that the mask allows
            if not bitmask[mask, guess[i] >> 5] >> (guess[i] & 31) & 1:
                guess[i] = tokens_in(bitmask[mask].numpy().view(np.uint32))[0]
        parts.append(MaskedRows(np.arange(begin, end), bitmask, masks))
    alone = [changed_by_masks(results, [part]) for part in parts]
    together = changed_by_masks(results, parts)
    assert together.tolist() == np.concatenate(alone).tolist()
    assert 0 < together.sum() < len(together)
    drawn_alone = 0  # rows whose only refused token is their draw
    for part, changed in zip(parts, alone, strict=True):
        for row, mask, changes in zip(part.rows, part.masks, changed, strict=True):
            above = int(results.above[row])
            tokens = [*results.ids[row, :above].tolist(), int(results.draw[row])]
            words = part.bitmask[mask].numpy().view(np.uint32)
            refused = [t for t in tokens if not words[t >> 5] >> np.uint32(t & 31) & 1]
            assert changes == (above > CANDIDATES or results.tail[row] > 1e-6 or bool(refused))
            drawn_alone += bool(above == 1 and refused == [int(results.draw[row])])
    assert drawn_alone
