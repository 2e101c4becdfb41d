"""A family of toys: one attention and a dense MLP, no soft embedding, and names of its own for
tensors. What families share is tested with it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlm.kernels.nvfp4 import tensor_scale
from dlm.models.backends import Dispatch
from dlm.models.cache import KVCache
from dlm.models.formats import MODELOPT, Format
from dlm.models.layout import Layout, Quantisation
from dlm.models.nvfp4 import NVFP4Linear
from dlm.models.pages import Pass
from dlm.models.places import Place, linear_places, quantise_linear, quantised_paths
from dlm.models.plan import FLOAT, Costs, Load, PassWork, attention_work
from dlm.models.shape import LayerConfig, ModelShape
from dlm.models.text_stack import TextStack

CONFIG = {"model_type": "dense_toy", "hidden": 32, "inner": 48}


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseConfig(ModelShape):
    inner: int


def config_of(settings: Mapping[str, Any]) -> DenseConfig:
    layer = LayerConfig(kind="full_attention", head_dim=16, kv_heads=1)
    return DenseConfig(
        **{"vocab_size": 40, "hidden_size": settings["hidden"], "heads": 2, "layers": (layer,)},
        **{"canvas_length": 8, "max_positions": 256, "inner": settings["inner"]},
    )


class DenseCosts(Costs):
    def part_of(self, tensor: str) -> str:
        return "embedding" if tensor.startswith("embed_tokens") else "dense"

    def state_bytes(self) -> int:
        return 8 * self.config.canvas_length

    def transient_bytes(self, slots: int) -> dict[str, int]:
        return {"logits": slots * self.config.canvas_length * self.config.vocab_size * FLOAT}

    def step_work(self, load: Load) -> dict[str, PassWork]:
        rows, sizes = load.slots * self.config.canvas_length, self.weight_bytes()
        work = {
            part: PassWork(read=sizes[part], operations=2 * rows * count)
            for part, count in self.parameters().items()
        }
        return {**work, "attention": attention_work(self.config, load)}


class DenseNetwork(TextStack[DenseConfig]):
    def __init__(self, config: DenseConfig):
        super().__init__(config, ("attention", "layers", "nvfp4"))
        hidden, layer = config.hidden_size, config.layers[0]
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        size = (config.heads + 2 * layer.kv_heads) * layer.head_dim
        self.qkv = nn.Linear(hidden, size, bias=False)
        self.up = nn.Linear(hidden, config.inner, bias=False)
        self.down = nn.Linear(config.inner, hidden, bias=False)

    @property
    def costs(self) -> DenseCosts:
        return DenseCosts(self, self.config)

    def warm_up(self, cache: KVCache, slots: int) -> list[Any]:
        return []

    @torch.inference_mode()
    def encode(self, tokens: Sequence[int], cache: KVCache, slot: int) -> Tensor:
        plan = cache.plan({slot: tokens}, [], 0)
        states = self.states(self.embed_tokens(torch.tensor(tokens)), plan, cache)
        cache.advance(plan)
        return states

    @torch.inference_mode()
    def denoise(self, canvas: Tensor, cache: KVCache, slots: Sequence[int]) -> Tensor:
        plan, x = cache.plan({}, slots, canvas.shape[1]), self.embed_tokens(canvas).flatten(0, 1)
        run = partial(self.states, cache=cache)
        if self.graphs is not None and self.graphs.accepts(plan, cache):
            return self.graphs.states(run, x, plan)
        return run(x, plan)

    def states(self, x: Tensor, plan: Pass, cache: KVCache) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (-1, 16)).split((2, 1, 1), dim=1)
        q, k, v = (part.contiguous() for part in parts)
        x = x + cache.attend(0, q, k, v, plan).flatten(1)
        return x + self.down(F.silu(self.up(x)))


_PREFIX = "transformer."


def parameter_name(tensor: str) -> str | None:
    return tensor.removeprefix(_PREFIX)


def adapt(
    model: DenseNetwork, names: Collection[str], form: Format | None, dispatch: Dispatch
) -> None:
    linear = quantise_linear(model, quantised_paths(names, form), _PREFIX.__add__)
    rows = {"nvfp4": [module.in_features for module in linear]}
    model.backends = dispatch.backends(rows, {16})
    for module in linear:
        module.backend, module.activation_bits = model.backends["nvfp4"], dispatch.activation_bits


def places(model: DenseNetwork, form: Format | None) -> dict[str, Place]:
    there: dict[str, Place] = {}
    for name, module in model.named_modules():
        if isinstance(module, NVFP4Linear) and form:
            there |= linear_places(_PREFIX + name, name, module, form)
    filled = {place.parameter for place in there.values()}
    state = model.state_dict().items()
    own = {n: Place(parameter=n, shape=tuple(t.shape)) for n, t in state if n not in filled}
    return there | {_PREFIX + name: place for name, place in own.items()}


def matrices(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor, Tensor]] | None:
    path, _, last = name.rpartition(".")
    if last != "weight" or path not in (_PREFIX + "up", _PREFIX + "down"):
        return None
    return iter([(path, tensor, tensor_scale(tensor))])


DENSE = Layout(
    model_types=("dense_toy",),
    config=config_of,
    network=DenseNetwork,
    parameter_name=parameter_name,
    adapt=adapt,
    places=places,
    quantisation=Quantisation(
        blocks=lambda config: {"hidden size": config.hidden_size, "inner size": config.inner},
        matrices=matrices,
        names=lambda config: [f"{_PREFIX}{n}.{MODELOPT.scale}" for n in ("up", "down")],
        input_scales=lambda model, canvases: {f"{_PREFIX}up.weight": torch.tensor(0.5)},
        ignored=("lm_head",),
    ),
)
