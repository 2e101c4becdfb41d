"""Log-probabilities of tokens, beside torch's own softmax."""

import pytest
import torch

from dlm.logits.canvas_logits import DeviceCopies
from dlm.logits.token_logprobs import token_logprobs


@pytest.mark.parametrize("top", [0, 1, 5, 20])
@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_are_those_of_a_softmax(top, softcap, dtype):
    logits = (9 * torch.randn(40, 333, generator=torch.Generator().manual_seed(top))).to(dtype)
    rows = [*range(5, 38)]
    tokens = [(7 * row) % 333 for row in rows]
    before = logits.clone()
    logprobs = token_logprobs(logits, rows, tokens, top, softcap, DeviceCopies(torch.device("cpu")))
    x = logits.float() if softcap is None else softcap * torch.tanh(logits.float() / softcap)
    right = x.log_softmax(-1)
    assert logits.equal(before)
    assert [each.token for each in logprobs] == tokens
    for row, each in zip(rows, logprobs, strict=True):
        assert each.logprob == pytest.approx(float(right[row, each.token]), abs=1e-4)
        best = right[row].topk(top)
        assert [token for token, _ in each.top] == best.indices.tolist() or dtype != torch.float32
        assert [number for _, number in each.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_tokens_without_a_probability_are_no_alternatives():
    logits = torch.full((1, 9), -torch.inf)
    logits[0, 4] = 2.0
    (entry,) = token_logprobs(logits, [0], [4], 5, None, DeviceCopies(torch.device("cpu")))
    assert (entry.token, entry.logprob, entry.top) == (4, 0.0, ((4, 0.0),))


def test_a_row_does_not_depend_on_those_beside_it():
    logits = torch.randn(40, 1000, generator=torch.Generator().manual_seed(1))
    copies = DeviceCopies(torch.device("cpu"))
    together = token_logprobs(logits, [*range(40)], [*range(40)], 3, 30.0, copies)
    alone = [token_logprobs(logits, [i], [i], 3, 30.0, copies)[0] for i in range(40)]
    assert together == alone
