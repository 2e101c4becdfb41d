"""A trained network with more layers, and wider dense MLPs."""

import torch
from torch import Tensor

from dlm.models import DiffusionGemma, ModelConfig

SAID = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")
INTO, OUT_OF = ("gate_proj.weight", "up_proj.weight"), "down_proj.weight"


def grown(model: DiffusionGemma, config: ModelConfig) -> DiffusionGemma:
    """`model` in the shapes of `config`: what is new says nothing yet, so that it computes what it
    did.

    New layers are copies behind the first half (arXiv:2405.15319 copies layers, arXiv:2401.02415
    silences them). New neurons of MLPs are random, and nothing comes out of them (as in LEMON,
    arXiv:2310.07999). Raises `ValueError` where layers do not come out as those of `config`, or
    neurons would have to go.
    """
    neurons, before = config.intermediate_size, model.config.intermediate_size
    if neurons < before:
        raise ValueError(f"{before} neurons cannot become {neurons}")
    state, larger = model.state_dict(), DiffusionGemma(config)
    whole = {name: tensor for name, tensor in state.items() if not name.startswith("layers.")}
    for to, (layer, silent) in enumerate(_sources(model.config, config)):
        for part, tensor in model.layers[layer].state_dict().items():
            mute = silent and part in SAID
            whole[f"layers.{to}.{part}"] = torch.zeros_like(tensor) if mute else tensor
    for name in whole:
        if name.endswith((*INTO, OUT_OF)):
            whole[name] = _widened(whole[name], neurons, name)
    larger.load_state_dict(whole)
    return larger


def _sources(before: ModelConfig, after: ModelConfig) -> list[tuple[int, bool]]:
    """Which layer each of the new network's was, and whether it is an added one."""
    old, new = before.layers, after.layers
    extra, cut = len(new) - len(old), len(old) // 2 + len(old) // 2 % 2
    source = [*range(cut), *range(cut - extra, cut), *range(cut, len(old))]
    if not 0 <= extra <= cut or [old[i] for i in source] != list(new):
        raise ValueError(f"{len(old)} layers cannot become {len(new)}: {old} {new}")
    return [(layer, cut <= to < cut + extra) for to, layer in enumerate(source)]


def _widened(matrix: Tensor, neurons: int, name: str) -> Tensor:
    """More rows as large as those there are, or more columns of nothing."""
    if name.endswith(OUT_OF):
        rows, columns = matrix.shape
        return torch.cat((matrix, matrix.new_zeros(rows, neurons - columns)), 1)
    rows = torch.randn(neurons - len(matrix), matrix.shape[1]).to(matrix)
    return torch.cat((matrix, rows * matrix.float().std().to(matrix)))
