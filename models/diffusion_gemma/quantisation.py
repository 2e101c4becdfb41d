"""Quantisation of a checkpoint: its experts become NVFP4. Attention, dense layers, router and
embedding stay as they are."""

from collections.abc import Iterator
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from dlm.kernels.nvfp4 import tensor_scale
from dlm.models.calibration import LargestActivations, denoise_and_encode
from dlm.models.diffusion_gemma.config import ModelConfig
from dlm.models.diffusion_gemma.model import DiffusionGemma
from dlm.models.diffusion_gemma.tensors import tensor_name
from dlm.models.experts import PROJECTIONS, Experts
from dlm.models.formats import MODELOPT

IGNORED = (
    *("lm_head", "*embed_vision*", "*mlp*", "*router*", "*self_attn*", "*self_conditioning*"),
    "*vision_tower*",
)


def blocks(config: ModelConfig) -> dict[str, int]:
    """Return the lengths of the rows of experts' matrices."""
    return {"hidden size": config.hidden_size, "expert size": config.expert_size}


def matrices(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor, Tensor]] | None:
    """Return the path of each matrix of a stack of experts, the matrix, and its tensor scale; None
    for another tensor."""
    path, _, stack = name.rpartition(".")
    if not path.endswith(".experts") or stack not in PROJECTIONS:
        return None
    return _of_experts(path, PROJECTIONS[stack], tensor)


def _of_experts(
    path: str, projections: tuple[str, ...], stack: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]]:
    for e, weights in enumerate(stack):
        scale_2 = tensor_scale(weights)  # one for gate and up, which are one tensor to ModelOpt
        for projection, part in zip(projections, weights.chunk(len(projections)), strict=True):
            yield f"{path}.{e}.{projection}", part, scale_2


def names(config: ModelConfig) -> list[str]:
    """Return for each layer a name of a tensor of both stacks in NVFP4."""
    experts = [tensor_name(f"layers.{i}.experts.0") for i in range(len(config.layers))]
    return [f"{each}.{p}.{MODELOPT.scale}" for each in experts for p in ("up_proj", "down_proj")]


def input_scales(model: DiffusionGemma, canvases: int) -> dict[str, Tensor]:
    """Return the input scales by the names of the stacks of experts on disk: the largest activation
    of all experts of a layer, before gate and up and before down, divided by the largest numbers of
    both formats. It is measured while the model denoises and encodes `canvases` canvases."""
    largest = LargestActivations()

    def hook(name: str, experts: nn.Module, args: tuple[Tensor, Tensor, Tensor]) -> None:
        x, _, chosen = args
        largest.note(tensor_name(f"{name}.gate_up_proj"), x)
        for e in chosen.unique().tolist():
            rows = x[(chosen == e).any(-1)]
            gate, up = F.linear(rows, experts.get_parameter("gate_up_proj")[e]).chunk(2, -1)
            largest.note(tensor_name(f"{name}.down_proj"), F.gelu(gate, approximate="tanh") * up)

    def carried(logits: Tensor) -> Tensor:
        return model.soft_embedding(model.softcapped(logits).softmax(-1))

    for name, module in model.named_modules():
        if isinstance(module, Experts):
            module.register_forward_pre_hook(partial(hook, name))
    denoise_and_encode(model, canvases, model.no_soft_embedding()[None], carried)
    return largest.scales()
