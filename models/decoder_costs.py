"""Memory and work of a plain decoder: its layers and its vocabulary."""

from dlm.models.plan import FLOAT, Costs, Load, PassWork, attention_work


class DecoderCosts(Costs):
    """Costs of a decoder whose layers are dense, and whose head may be its embedding."""

    def part_of(self, tensor: str) -> str:
        if tensor.startswith("embed_tokens"):
            return "embedding"
        return "head" if tensor.startswith("lm_head") else "dense"

    def state_bytes(self) -> int:
        """Return the bytes of the tokens of a canvas."""
        return 8 * self.config.canvas_length

    def transient_bytes(self, slots: int) -> dict[str, int]:
        """Logits are bf16, which a kernel reads; without one, fp32 copies of them are added."""
        config, rows = self.config, slots * self.config.canvas_length
        widest = max(layer.head_dim for layer in config.layers) * config.heads
        return {
            "logits": rows * config.vocab_size * FLOAT,
            "attention": rows * widest * FLOAT * 3,
            "dense": rows * self.widest_mlp * FLOAT * 3,
        }

    @property
    def widest_mlp(self) -> int:
        """Numbers inside the widest dense MLP; 0 if there is none."""
        state, ends = self._network.state_dict(), ("up_proj.weight", "up_proj.weight.packed")
        return max(
            (len(tensor) for name, tensor in state.items() if name.endswith(ends)), default=0
        )

    def step_work(self, load: Load) -> dict[str, PassWork]:
        config, sizes, count = self.config, self.weight_bytes(), self.parameters()
        rows = load.slots * config.canvas_length
        head = sizes.get("head", sizes["embedding"])
        logits = self.transient_bytes(load.slots)["logits"]
        return {
            "dense": PassWork(
                read=sizes["dense"],
                operations=2 * rows * count["dense"],
                four_bit=load.activation_bits == 4,
            ),
            "vocabulary": PassWork(
                read=head + 2 * logits,
                operations=2 * rows * config.hidden_size * config.vocab_size,
            ),
            "attention": attention_work(config, load),
        }
