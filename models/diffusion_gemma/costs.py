"""Memory and work of a network: its experts, its dense layers, its embedding and vocabulary."""

from torch import nn

from dlm.models.diffusion_gemma.config import ModelConfig
from dlm.models.plan import FLOAT, Costs, Load, PassWork, attention_work

_GATHERED = 64  # assumed number of tokens in a position's soft embedding


class NetworkCosts(Costs):
    config: ModelConfig

    def __init__(self, network: nn.Module, config: ModelConfig):
        super().__init__(network, config)
        self.config = config

    def part_of(self, tensor: str) -> str:
        if tensor.startswith("embed_tokens"):
            return "embedding"
        return "experts" if ".experts." in tensor else "dense"

    def state_bytes(self) -> int:
        """Return the bytes of a soft embedding and the tokens of a canvas."""
        return self.config.canvas_length * (self.config.hidden_size * FLOAT + 8)

    def transient_bytes(self, slots: int) -> dict[str, int]:
        """Logits are bf16, which a kernel reads; without one, fp32 copies of them are added."""
        config = self.config
        rows = slots * config.canvas_length
        chosen = rows * config.experts_per_token
        widest = max(layer.head_dim for layer in config.layers) * config.heads
        return {
            "logits": rows * config.vocab_size * FLOAT,
            "experts": chosen * (config.expert_size * FLOAT + config.hidden_size * 4),
            "attention": rows * widest * FLOAT * 3,
            "dense": rows * config.intermediate_size * FLOAT * 3,
        }

    def step_work(self, load: Load) -> dict[str, PassWork]:
        config, sizes, count = self.config, self.weight_bytes(), self.parameters()
        rows = load.slots * config.canvas_length
        k, E, V, H = config.experts_per_token, config.experts, config.vocab_size, config.hidden_size
        hit = 1 - (1 - k / E) ** rows  # share of experts that are used, if all are equally likely
        logits = self.transient_bytes(load.slots)["logits"]
        gathered = rows * _GATHERED * H * FLOAT
        return {
            "experts": PassWork(
                read=sizes["experts"] * hit,
                operations=2 * rows * count["experts"] * k / E,
                four_bit=load.activation_bits == 4,
            ),
            "dense": PassWork(read=sizes["dense"], operations=2 * rows * count["dense"]),
            "vocabulary": PassWork(
                read=sizes["embedding"] + 2 * logits + gathered,
                operations=2 * rows * H * (V + _GATHERED),
            ),
            "attention": attention_work(config, load),
        }
