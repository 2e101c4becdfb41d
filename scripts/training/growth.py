"""A trained network with more layers."""

import torch

from dlm.models import DiffusionGemma, ModelConfig

SAID = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")


def deepened(model: DiffusionGemma, config: ModelConfig) -> DiffusionGemma:
    """`model` with as many layers as `config` has: new ones behind the first half are copies of
    those before them that say nothing yet, so that it computes what it did (arXiv:2405.15319 copies
    layers, arXiv:2401.02415 silences them).

    Raises `ValueError` where their kinds do not come out as those of `config`.
    """
    old, new = model.config.layers, config.layers
    extra, cut = len(new) - len(old), len(old) // 2 + len(old) // 2 % 2
    source = [*range(cut), *range(cut - extra, cut), *range(cut, len(old))]
    if not 0 <= extra <= cut or [old[i] for i in source] != list(new):
        raise ValueError(f"{len(old)} layers cannot become {len(new)}: {old} {new}")
    state, deeper = model.state_dict(), DiffusionGemma(config)
    whole = {name: tensor for name, tensor in state.items() if not name.startswith("layers.")}
    for to, layer in enumerate(source):
        for part, tensor in model.layers[layer].state_dict().items():
            silent = cut <= to < cut + extra and part in SAID
            whole[f"layers.{to}.{part}"] = torch.zeros_like(tensor) if silent else tensor
    deeper.load_state_dict(whole)
    return deeper
