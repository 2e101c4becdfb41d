"""A model whose weights are drawn where it runs, for benchmarks of a step: no file is read.

Numbers are as wide as a trained model's, so that nothing overflows and experts are chosen evenly.
A few tokens are loud: in each row some of them share nearly all of the probability, where plain
random weights would give all tokens some, and no list of candidates would do.
"""

import torch
from torch import Tensor

from dlm.models import DiffusionGemma, ModelConfig, plan
from dlm.models.backends import Dispatch
from dlm.models.formats import MODELOPT
from dlm.models.layout import blank, give, places

_WEIGHT = 0.02  # standard deviation of a matrix
_LOGIT, _LOUD = 2.0, 40.0  # of a logit, before the softcap; of a loud token's
_LOUD_TOKENS = 64
_FOUR_BIT = 2.9  # root mean square of the sixteen numbers of four bits


def random_model(
    config: ModelConfig, weights: plan.Weights, dispatch: Dispatch, seed: int = 0
) -> DiffusionGemma:
    """Raises `BackendError` for kernels that cannot be had."""
    model = plan.unfilled(config, weights, dispatch)
    tensors = blank(model, places(model, MODELOPT if weights == "nvfp4" else None), dispatch)
    rng = torch.Generator(dispatch.device).manual_seed(seed)
    for name, tensor in tensors.items():
        _draw(name, tensor, config, rng)
    return give(model, tensors)


def _draw(name: str, tensor: Tensor, config: ModelConfig, rng: torch.Generator) -> None:
    if name.endswith(".packed"):
        tensor.random_(0, 256, generator=rng)
    elif name.endswith(".scale_2"):
        tensor.fill_(_WEIGHT / _FOUR_BIT)
    elif name.startswith("embed_tokens"):  # logits are products of it with normed states
        tensor.normal_(std=_LOGIT / config.hidden_size**0.5, generator=rng)
        tensor[:: max(1, config.vocab_size // _LOUD_TOKENS)] *= _LOUD / _LOGIT
    elif tensor.dim() > 1 and tensor.dtype != torch.float8_e4m3fn:
        tensor.normal_(std=_WEIGHT, generator=rng)
    else:
        tensor.fill_(1)  # gains, scalars, scales of blocks and of activations
