"""Random checkpoints of models whose blocks are cached whole, and the modules that define them.

SDAR is transformers' Qwen 3, dense or routed, under a mask of blocks. LLaDA2 has no module there:
`LLaDA2` below is written from its description, one token and one head at a time where that is
plainer. Its parameters have the names of a file.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
SDAR = {"architectures": ["SDARForCausalLM"], "model_type": "sdar", **SIZES}
SDAR_MOE = {
    **SDAR,
    "architectures": ["SDARMoeForCausalLM"],
    "model_type": "sdar_moe",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
LLADA2 = {
    **SIZES,
    "architectures": ["LLaDA2MoeModelLM"],
    "model_type": "llada2_moe",
    "block_size": 8,  # files name none: their blocks have 32
    "partial_rotary_factor": 0.5,
    "first_k_dense_replace": 1,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 24,
    "routed_scaling_factor": 2.5,
}
CONFIGS = {"sdar": SDAR, "sdar_moe": SDAR_MOE, "llada2": LLADA2}


def block_of(config: dict[str, Any]) -> int:
    return config.get("block_size", 4)


def seen(tokens: int, block: int) -> Tensor:
    """Return which tokens each token sees: its own block and all earlier ones."""
    blocks = torch.arange(tokens) // block
    return blocks[None, :] <= blocks[:, None]


class Oracle:
    """States and logits of whole texts, without a cache."""

    def __init__(self, config: dict[str, Any]):
        self.config, self.block = config, block_of(config)
        self.model = _model(config).eval().requires_grad_(False)
        rng = torch.Generator().manual_seed(3)
        for name, parameter in self.model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=rng)
            if "norm" in name:
                parameter.data = 1 + drawn / 4
            elif name.endswith("expert_bias"):
                parameter.data = drawn / 8
            else:
                parameter.data = drawn * parameter.shape[-1] ** -0.5

    @torch.no_grad()
    def states(self, tokens: list[int]) -> Tensor:
        visible = seen(len(tokens), self.block)
        if isinstance(self.model, LLaDA2):
            return self.model.states(torch.tensor(tokens), visible)
        mask = torch.where(visible, 0.0, torch.finfo(torch.float32).min)[None, None]
        return self.model.model(torch.tensor([tokens]), mask).last_hidden_state[0]

    @torch.no_grad()
    def logits(self, tokens: list[int]) -> Tensor:
        return self.model.lm_head(self.states(tokens))

    def write(self, directory: Path, **settings: Any) -> Path:
        """Write a directory in the layout of the family's files."""
        directory.mkdir(parents=True, exist_ok=True)
        save_file(self.tensors(), directory / "model.safetensors", metadata={"format": "pt"})
        (directory / "config.json").write_text(json.dumps(self.config | settings))
        return directory

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of a file: experts one by one, as Qwen's and LLaDA's files have
        them."""
        found: dict[str, Tensor] = {}
        for name, tensor in self.model.state_dict().items():
            path, _, stack = name.rpartition(".")
            if not path.endswith("mlp.experts"):
                found[name] = tensor.contiguous()
                continue
            for e, matrix in enumerate(tensor):
                parts = {"down_proj": matrix}
                if stack == "gate_up_proj":
                    parts = dict(zip(("gate_proj", "up_proj"), matrix.chunk(2), strict=True))
                for projection, part in parts.items():
                    found[f"{path}.{e}.{projection}.weight"] = part.contiguous()
        return found


def _model(config: dict[str, Any]) -> Any:
    if config["model_type"] == "llada2_moe":
        return LLaDA2(config)
    routed = config["model_type"] == "sdar_moe"
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    fields = {
        name: value
        for name, value in config.items()
        if name not in ("architectures", "model_type", "rope_theta")
    }
    fields |= {"rope_parameters": rope, "attn_implementation": "eager", "pad_token_id": None}
    if routed:
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**fields, experts_implementation="eager"))
    return Qwen3ForCausalLM(Qwen3Config(**fields))


class Weight(nn.Module):
    """A matrix or a gain with the name of a file's."""

    def __init__(self, *shape: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T

    def norm(self, x: Tensor, eps: float) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * self.weight


def mlp(hidden: int, inner: int) -> nn.ModuleDict:
    shapes = {
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }
    return nn.ModuleDict({name: Weight(*shape) for name, shape in shapes.items()})


def through(weights: Any, x: Tensor) -> Tensor:
    gate, up = weights["gate_proj"](x), weights["up_proj"](x)
    return weights["down_proj"](gate * torch.sigmoid(gate) * up)


class LLaDA2(nn.Module):
    """LLaDA2 for one text."""

    def __init__(self, config: dict[str, Any]):
        super().__init__()
        c = self.config = config
        H, D = c["hidden_size"], c["head_dim"]
        heads = c["num_attention_heads"] + 2 * c["num_key_value_heads"]
        layers = []
        for index in range(c["num_hidden_layers"]):
            layer = nn.ModuleDict(
                {
                    "input_layernorm": Weight(H),
                    "post_attention_layernorm": Weight(H),
                    "attention": nn.ModuleDict(
                        {
                            "query_key_value": Weight(heads * D, H),
                            "query_layernorm": Weight(D),
                            "key_layernorm": Weight(D),
                            "dense": Weight(H, c["num_attention_heads"] * D),
                        }
                    ),
                    "mlp": mlp(H, c["intermediate_size"])
                    if index < c["first_k_dense_replace"]
                    else self.routed(),
                }
            )
            layers.append(layer)
        self.model = nn.ModuleDict(
            {
                "word_embeddings": Weight(c["vocab_size"], H),
                "layers": nn.ModuleList(layers),
                "norm": Weight(H),
            }
        )
        self.lm_head = Weight(c["vocab_size"], H)

    def routed(self) -> nn.ModuleDict:
        H, inner, E = (
            self.config[name] for name in ("hidden_size", "moe_intermediate_size", "num_experts")
        )
        gate = Weight(E, H)
        gate.expert_bias = nn.Parameter(torch.empty(E))
        experts = nn.ModuleList(mlp(H, inner) for _ in range(E))
        return nn.ModuleDict({"gate": gate, "experts": experts, "shared_experts": mlp(H, inner)})

    def states(self, tokens: Tensor, visible: Tensor) -> Tensor:
        eps = self.config["rms_norm_eps"]
        x = self.model["word_embeddings"].weight[tokens]
        for layer in self.model["layers"]:
            x = x + self.attention(
                layer["attention"], layer["input_layernorm"].norm(x, eps), visible
            )
            inner = layer["post_attention_layernorm"].norm(x, eps)
            if "experts" in layer["mlp"]:
                x = x + torch.stack([self.experts(layer["mlp"], row) for row in inner])
            else:
                x = x + through(layer["mlp"], inner)
        return self.model["norm"].norm(x, eps)

    def attention(self, weights: Any, x: Tensor, visible: Tensor) -> Tensor:
        c, eps = self.config, self.config["rms_norm_eps"]
        heads, shared = c["num_attention_heads"], c["num_key_value_heads"]
        qkv = weights["query_key_value"](x).unflatten(-1, (heads + 2 * shared, c["head_dim"]))
        q = self.turned(weights["query_layernorm"].norm(qkv[:, :heads], eps))
        k = self.turned(weights["key_layernorm"].norm(qkv[:, heads : heads + shared], eps))
        results = []
        for head in range(heads):
            other = head // (heads // shared)
            scores = q[:, head] @ k[:, other].T / c["head_dim"] ** 0.5
            weight = scores.masked_fill(~visible, -torch.inf).softmax(-1)
            results.append(weight @ qkv[:, heads + shared + other])
        return weights["dense"](torch.cat(results, -1))

    def turned(self, x: Tensor) -> Tensor:
        """Turn the pairs of the leading half of each head, `[tokens, heads, D]`."""
        dim = int(self.config["head_dim"] * self.config["partial_rotary_factor"])
        result = x.clone()
        for i in range(dim // 2):
            angle = torch.arange(len(x))[:, None] / self.config["rope_theta"] ** (2 * i / dim)
            one, other = x[..., i], x[..., i + dim // 2]
            result[..., i] = one * angle.cos() - other * angle.sin()
            result[..., i + dim // 2] = other * angle.cos() + one * angle.sin()
        return result

    @torch.no_grad()
    def chosen(self, gate: Any, x: Tensor) -> tuple[list[int], Tensor]:
        """Return the experts of one token, and the scores of all."""
        c, scores = self.config, torch.sigmoid(gate(x))
        biased, size = scores + gate.expert_bias, c["num_experts"] // c["n_group"]
        groups = [range(g * size, (g + 1) * size) for g in range(c["n_group"])]
        groups.sort(key=lambda group: -sum(sorted(float(biased[e]) for e in group)[-2:]))
        allowed = [e for group in groups[: c["topk_group"]] for e in group]
        return sorted(allowed, key=lambda e: -float(biased[e]))[: c["num_experts_per_tok"]], scores

    def experts(self, weights: Any, x: Tensor) -> Tensor:
        """Return the result of a routed MLP for one token."""
        experts, scores = self.chosen(weights["gate"], x)
        total = sum(scores[e] for e in experts)
        y = through(weights["shared_experts"], x)
        for e in experts:
            share = scores[e] / total * self.config["routed_scaling_factor"]
            y = y + share * through(weights["experts"][e], x)
        return y
