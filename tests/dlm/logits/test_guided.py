"""Logits rewritten in place for another engine's sampler, against what guidance means."""

from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from masked import tokens_in
from values import V

import dlm.logits.guided
from dlm import JsonSchema, Regex
from dlm.grammar import NOTHING, Fixed, Free, Frontier, Guidance, Unfinished
from dlm.logits.guided import GuidedCanvas, LogitsGuide
from dlm.logits.sampling import Cut

SIZE, WORDS = 300, 10
STOPS = 1, 106, 50


class Given:
    """A constraint that returns the guidance it was made with."""

    squeezed = False

    def __init__(self, read: Guidance | Exception):
        self.work = self.spent = 0
        self._read = read

    def guide(self, scores, fixed):
        if isinstance(self._read, Exception):
            raise self._read
        return self._read

    def commit(self, tokens):
        raise AssertionError("a step commits nothing")

    rollback = commit


def random_guidance(rng: np.random.Generator, logits: torch.Tensor) -> Guidance:
    """Guidance of a canvas: masks, named tokens, a suspect position, repairs among the guess."""
    L = len(logits)
    bitmask = torch.from_numpy(rng.integers(-(2**31), 2**31, (3, WORDS)).astype(np.int32))
    suspect = int(rng.integers(0, L + 1))
    rows, guess = [], logits.argmax(-1).tolist()
    for position in range(suspect):
        if rng.random() < 0.3:
            guess[position] = int(rng.integers(SIZE))
            rows.append(~guess[position])
            continue
        rows.append(int(rng.integers(3)))
        allowed = sorted(tokens_in(bitmask[rows[-1]], SIZE))
        if guess[position] not in allowed or rng.random() < 0.2:
            guess[position] = int(rng.choice(allowed))
    return Guidance(
        guess=guess, bitmask=bitmask, rows=rows, suspect=suspect, repaired=True, stop=L, scored=L
    )


@examples(60)
@given(
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.1, 3.0, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_rows_say_what_the_guidance_says_and_others_are_left_alone(seed, scale, dtype, lengths):
    rng = np.random.default_rng(seed)
    logits = torch.tensor(scale * rng.normal(size=(sum(lengths) + 5, SIZE))).to(dtype)
    before, first, canvases, readings = logits.clone(), 2, [], []
    for length in lengths:
        read = random_guidance(rng, logits[first : first + length])
        canvases.append(GuidedCanvas(constraint=Given(read), first=first, length=length))
        readings.append(read)
        first += length

    assert LogitsGuide(SIZE).guide_(logits, canvases) == readings

    assert torch.equal(logits[:2], before[:2])
    assert torch.equal(logits[first:], before[first:])
    for canvas, read in zip(canvases, readings, strict=True):
        for position in range(canvas.length):
            row, old = logits[canvas.first + position], before[canvas.first + position]
            probabilities = row.double().softmax(-1)
            assert int(row.argmax()) == read.guess[position]
            if position >= read.suspect:
                assert probabilities.max() < 5 / SIZE
                continue
            mask = read.rows[position]
            allowed = {~mask} if mask < 0 else tokens_in(read.bitmask[mask], SIZE)
            assert probabilities[sorted(allowed)].sum() > 1 - 2e-6
            others = sorted(allowed - {read.guess[position]})
            if mask >= 0:
                assert torch.equal(row[others], old[others])


def canvas_of(read: Guidance, **more) -> GuidedCanvas:
    return GuidedCanvas(constraint=Given(read), first=0, length=len(read.guess), **more)


def allowing(*tokens: int) -> torch.Tensor:
    words = np.zeros(WORDS, dtype=np.uint32)
    for token in tokens:
        words[token >> 5] |= np.uint32(1 << (token & 31))
    return torch.from_numpy(words.view(np.int32)[None].copy())


def test_cuts_are_made_among_what_is_allowed_and_leave_suspect_rows_flat():
    """A top-k of 1 made afterwards would have them pass for sure."""
    logits = torch.arange(SIZE).float().repeat(2, 1) / 100
    read = Guidance(
        guess=[9, 4],
        bitmask=allowing(7, 8, 9),
        rows=[0],
        suspect=1,
        repaired=False,
        stop=2,
        scored=2,
    )
    LogitsGuide(SIZE).guide_(logits, [canvas_of(read, cut=Cut(temperature=1.0, top_k=2))])
    assert (~logits[0].isneginf()).nonzero()[:, 0].tolist() == [8, 9]
    assert logits[1].softmax(-1).max() < 5 / SIZE


def test_free_canvases_are_cut_as_well():
    logits = torch.arange(SIZE).float().repeat(3, 1)
    cut = Cut(temperature=1.0, top_k=1)
    canvas = GuidedCanvas(constraint=Free([1]), first=0, length=3, cut=cut)
    LogitsGuide(SIZE).guide_(logits, [canvas])
    assert (~logits.isneginf()).sum(-1).tolist() == [1, 1, 1]


def test_a_row_of_which_nothing_is_left_takes_its_guess():
    logits = torch.full((1, SIZE), -torch.inf)
    logits[0, 3] = 5.0
    read = Guidance(
        guess=[8], bitmask=allowing(7, 8), rows=[0], suspect=1, repaired=True, stop=1, scored=1
    )
    LogitsGuide(SIZE).guide_(logits, [canvas_of(read)])
    assert logits[0].softmax(-1)[8] == 1


def test_what_one_constraint_raises_is_its_own_result_and_its_rows_stay():
    logits = torch.randn(6, SIZE)
    before, right = logits.clone(), random_guidance(np.random.default_rng(0), logits[:3])
    wrong = replace(right, guess=[0])
    for failing in (Given(Unfinished("more time")), Given(wrong)):
        rows = logits.clone()
        canvases = [
            GuidedCanvas(constraint=Given(right), first=0, length=3),
            GuidedCanvas(constraint=failing, first=3, length=3),
        ]
        good, bad = LogitsGuide(SIZE).guide_(rows, canvases)
        assert good is right
        assert isinstance(bad, Exception)
        assert torch.equal(rows[3:], before[3:])
        assert not torch.equal(rows[:3], before[:3])


def test_logits_of_another_vocabulary_are_refused():
    with pytest.raises(ValueError, match="299 logits for 300 tokens"):
        LogitsGuide(SIZE).guide_(torch.zeros(1, SIZE - 1), [])


def answered(compiler, guide, spec, seed, budget=40, L=16, passes=6):
    """The tokens of an answer, from random logits that nothing but the constraint makes sense of:
    each canvas is committed after its last pass."""
    rng, constraint = torch.Generator().manual_seed(seed), Frontier(compiler.compile(spec), budget)
    tokens: list[int] = []
    while True:
        for step in range(passes):
            logits = 20 * torch.randn(L, V, generator=rng)
            fixed = Fixed(last=step == passes - 1)
            canvas = GuidedCanvas(constraint=constraint, first=0, length=L, fixed=fixed)
            (read,) = guide.guide_(logits, [canvas])
            assert isinstance(read, Guidance)
        canvas_tokens = logits.argmax(-1).tolist()
        assert canvas_tokens == read.guess
        tokens += canvas_tokens[: read.stop + 1]
        constraint.commit(canvas_tokens[: read.stop + 1])
        if read.stop < L:
            return tokens


def test_what_is_committed_of_any_logits_is_valid_and_two_ranks_decide_alike(compiler, vocabulary):
    """Work is counted, not timed: two engines that see the same logits say the same."""
    specs = [Regex("[a-f]{3,30}"), JsonSchema({"type": "array", "items": {"type": "integer"}})]
    for i, spec in enumerate(specs):
        ranks = [answered(compiler, LogitsGuide(V), spec, seed=i) for _ in range(2)]
        assert ranks[0] == ranks[1]
        spec.value(vocabulary.text(ranks[0]))


def unmasked(compiler, spec, seed, L, editing, scale=12.0, budget=40):
    """The tokens of an answer that a sampler by confidence unmasks from random logits, and the
    passes of each canvas. A token that stands is another one only if it was edited."""
    rng, constraint = torch.Generator().manual_seed(seed), Frontier(compiler.compile(spec), budget)
    guide, tokens, passes, threshold = LogitsGuide(V), [], [], 0.9
    while not set(STOPS).intersection(tokens):
        held: dict[int, int] = {}
        count = 0
        while len(held) < L:
            count += 1
            logits = scale * torch.randn(L, V, generator=rng)
            canvas = GuidedCanvas(
                constraint=constraint,
                first=0,
                length=L,
                fixed=Fixed(held=held),
                masked=True,
                edit_threshold=0.5 if editing else None,
            )
            (read,) = guide.guide_(logits, [canvas])
            assert isinstance(read, Guidance)
            sure, best = logits.softmax(-1).max(-1)
            edited = {p: int(best[p]) for p, token in held.items() if best[p] != token}
            assert editing or not edited
            holes = [p for p in range(L) if p not in held]
            above = [p for p in holes if sure[p] > threshold]
            picked = above or [max(holes, key=lambda p: sure[p])]
            held = held | edited | {p: int(best[p]) for p in picked}
            assert read.misplaced(held) == []
        block = [held[p] for p in range(L)]
        stop = next((i + 1 for i, token in enumerate(block) if token in STOPS), L)
        constraint.commit(block[:stop])
        tokens, passes = tokens + block[:stop], [*passes, count]
    return tokens, passes


@pytest.mark.parametrize("editing", [False, True])
@pytest.mark.parametrize("scale", [1.0, 12.0])
def test_what_a_sampler_by_confidence_unmasks_is_valid(compiler, vocabulary, editing, scale):
    specs = [Regex("[a-f]{3,30}"), JsonSchema({"type": "array", "items": {"type": "integer"}})]
    for i, spec in enumerate(specs):
        for L in (4, 16):
            tokens, passes = unmasked(compiler, spec, i, L, editing, scale)
            assert max(passes) <= L
            spec.value(vocabulary.text(tokens))


def test_a_suspect_mask_that_is_unmasked_all_the_same_is_found():
    read = Guidance(
        guess=[9, 4, 5], bitmask=allowing(9), rows=[0], suspect=1, repaired=True, stop=3, scored=2,
        read=2,
    )  # fmt: skip
    assert read.misplaced({0: 9, 1: 4}) == []
    assert read.misplaced({0: 8, 1: 4, 2: 5}) == [0, 2]
    logits = torch.randn(3, SIZE)
    LogitsGuide(SIZE).guide_(logits, [canvas_of(read, masked=True, fixed=Fixed(held={1: 4}))])
    assert logits[0].argmax() == 9
    assert logits[1].softmax(-1)[4] == 1
    assert torch.equal(logits[2], torch.zeros(SIZE))
    last = Fixed(held={1: 4}, last=True)
    LogitsGuide(SIZE).guide_(logits, [canvas_of(read, masked=True, fixed=last)])
    assert logits[1:].softmax(-1)[[0, 1], [4, 5]].tolist() == [1, 1]


def test_a_step_takes_few_copies_however_many_canvases_there_are(compiler, vocabulary):
    """Numbers to read by, what was read, new masks, and the rows to rewrite."""
    guide, spec = LogitsGuide(V, work=10**6), Regex("[a-f]{3,30}")
    compiled = compiler.compile(spec)
    logits = torch.zeros(8 * 16, V)
    (likely,), (forbidden,) = vocabulary.encode("a"), vocabulary.encode("z")
    logits[:, likely], logits[:, forbidden] = 30.0, 29.0
    canvases = [
        GuidedCanvas(constraint=Frontier(compiled, 40), first=16 * i, length=16) for i in range(8)
    ]
    guide.guide_(logits, canvases)
    assert guide.copies == 4
    assert logits[:, forbidden].isneginf().all()
    guide.guide_(logits, canvases)
    assert guide.copies == 7


class Greedy(Free):
    """A constraint that needs `needed` units in all, and takes what it gets."""

    def __init__(self, needed):
        super().__init__(())
        self.needed, self.work, self.spent, self.granted = needed, 0, 0, []

    def guide(self, scores, fixed=NOTHING):
        self.granted.append(self.work)
        self.spent = min(self.needed, self.work)
        self.needed -= self.spent
        if self.needed:
            raise Unfinished
        return super().guide(scores, fixed)


@pytest.mark.parametrize("needs", [[390, 10, 10, 10], [10, 10, 10, 390], [10, 340, 10, 340]])
def test_work_that_some_constraints_leave_goes_to_those_that_need_more(needs):
    guide, greedy = LogitsGuide(V, work=800), [Greedy(needed) for needed in needs]
    canvases = [GuidedCanvas(constraint=one, first=4 * i, length=4) for i, one in enumerate(greedy)]
    results = guide.guide_(torch.zeros(16, V), canvases)
    assert all(isinstance(result, Guidance) for result in results)
    assert sum(one.spent for one in greedy) <= 800
    assert {one.granted[0] for one in greedy} == {200}  # the equal share of four


def test_constraints_of_a_step_take_no_more_than_its_work_together():
    guide, greedy = LogitsGuide(V, work=800), [Greedy(needed) for needed in (10, 900, 900, 900)]
    canvases = [GuidedCanvas(constraint=one, first=4 * i, length=4) for i, one in enumerate(greedy)]
    for step in range(1, 5):
        results = guide.guide_(torch.zeros(16, V), canvases)
        taken = 10 * (step > 1) + 2700 - sum(one.needed for one in greedy[1:])
        assert taken <= 800 * step
    assert all(isinstance(result, Guidance) for result in results)


def test_less_work_than_constraints_still_moves_each_of_them():
    guide, greedy = LogitsGuide(V, work=1), [Greedy(3) for _ in range(4)]
    canvases = [GuidedCanvas(constraint=one, first=i, length=1) for i, one in enumerate(greedy)]
    for _ in range(3):
        results = guide.guide_(torch.zeros(4, V), canvases)
    assert all(isinstance(result, Guidance) for result in results)


def test_memory_for_masks_is_allocated_by_the_warm_up_and_stays(compiler):
    guide, compiled = LogitsGuide(V, work=10**6), compiler.compile(Regex("[a-f]{3,30}"))
    guide.warm_up(torch.device("cpu"))
    place, count = guide._table.bitmask.data_ptr(), len(guide._table.bitmask)
    assert count == 1024
    canvas = GuidedCanvas(constraint=Frontier(compiled, 40), first=0, length=16)
    guide.guide_(torch.zeros(16, V), [canvas])
    assert guide._table.count > 0
    assert (guide._table.bitmask.data_ptr(), len(guide._table.bitmask)) == (place, count)


def test_the_warm_up_reads_rows_as_steps_do(compiler, monkeypatch):
    """Without masks, and refused rows under theirs: on a GPU each is a kernel of its own."""
    read, original = [], dlm.logits.guided.vocab_pass

    def passed(logits, heat, uniform, masks, rows, **more):
        read.append(masks is None)
        return original(logits, heat, uniform, masks, rows, **more)

    monkeypatch.setattr(dlm.logits.guided, "vocab_pass", passed)
    guide, logits = LogitsGuide(V, work=10**6), torch.zeros(16, V)
    guide.warm_up(torch.device("cpu"))
    warm = {*read}
    canvas = GuidedCanvas(
        constraint=Frontier(compiler.compile(Regex("[a-f]{3,30}")), 40), first=0, length=16
    )
    for _ in range(2):
        guide.guide_(logits.clone(), [canvas])
    assert warm == {*read} == {True, False}


def test_the_example_of_the_docs_answers(chat, vocabulary):
    """Two requests of three are constrained; each canvas is committed after its last pass."""
    page = (Path(__file__).parents[3] / "docs" / "serving_stacks.md").read_text()
    code = page[page.index("    from dlm.grammar") : page.index("\n`last` says")]
    names: dict = {}
    exec(compile(dedent(code), "docs/serving_stacks.md", "exec"), names)
    engine = names["Grammars"](chat.tokenizer, V, STOPS, 0)
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
    rng, emitted = torch.Generator().manual_seed(0), {"a": [], "free": [], "b": []}
    engine.admit("a", schema, 30)
    engine.admit("b", schema, 12)
    L, step = 16, 0
    while engine.running:
        logits = 20 * torch.randn(3, L, V, generator=rng)
        step += 1
        failed, again = engine.before_sampling([*emitted], logits, [step % 4 == 0] * 3)
        assert not failed
        if step % 4 or again:
            continue
        for name, tokens in zip(emitted, logits.argmax(-1).tolist(), strict=True):
            if name not in engine.running:
                continue
            engine.committed(name, tokens)
            emitted[name] += tokens
            if {*STOPS} & {*tokens}:
                engine.ended(name)
    for name in ("a", "b"):
        end = next(i for i, token in enumerate(emitted[name]) if token in STOPS)
        assert JsonSchema(schema).value(vocabulary.text(emitted[name][:end])) is not None
    engine.compiler.close()
