"""Log-probabilities of chosen tokens by rows of logits, unmasked and at a temperature of 1."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dlm.kernels.vocab_rows import heated
from dlm.logits.canvas_logits import DeviceCopies
from dlm.logprobs import TokenLogprob

_ROWS = 16  # read at a time: two fp32 buffers of 16 MiB for 262,144 tokens


def token_logprobs(
    logits: Float[Tensor, "n V"],
    rows: Sequence[int],
    tokens: Sequence[int],
    top: int,
    softcap: float | None,
    copies: DeviceCopies,
) -> list[TokenLogprob]:
    """Return the log-probability of each of `tokens` in its row of `logits`, and the `top`
    likeliest tokens there. Tokens without any probability are not listed among these."""
    logprobs = list[TokenLogprob]()
    for begin in range(0, len(rows), _ROWS):
        these = list(tokens[begin : begin + _ROWS])
        at = torch.tensor([[*rows[begin : begin + _ROWS]], these])
        places, chosen = copies.to_device(at)[0]
        x = heated(logits[places], torch.ones(len(these), device=logits.device), softcap)
        best = x.topk(min(top, x.shape[1]), dim=1)
        values = torch.cat((x.gather(1, chosen[:, None]), best.values), dim=1)
        values -= x.logsumexp(dim=1, keepdim=True)
        packed = torch.cat((values.view(torch.int32), best.indices.int()), dim=1)
        packed = copies.to_host(packed)
        numbers = packed[:, : 1 + best.values.shape[1]].contiguous().view(torch.float32).tolist()
        ids = packed[:, 1 + best.values.shape[1] :].tolist()
        for token, (own, *others), likeliest in zip(these, numbers, ids, strict=True):
            pairs = zip(likeliest, others, strict=True)
            listed = tuple((id, number) for id, number in pairs if number > -torch.inf)
            logprobs.append(TokenLogprob(token, own, listed))
    return logprobs
