"""Configs of vLLM: one of the plugin's model, and those of others."""

from types import SimpleNamespace

from values import V
from vllm_package import ARCHITECTURE

FORGED = ("x", "", 7, [], ["x"], {"rules": "x"}, {"rules": {"rules": [1]}}, None)
DATA = {
    "rules": b"rules",
    "thinking": False,
    "thinking_budget": None,
    "opened": False,
    "top_k": 0,
    "top_p": 1.0,
    "failed": 0,
    "stops": [1, 106],
    "squeezed": [3, 4],
}


def config(architecture=ARCHITECTURE, diffusion=True):
    model = SimpleNamespace(
        architecture=architecture,
        is_diffusion=diffusion,
        model="a model",
        try_get_generation_config=lambda: {"eos_token_id": [1, 106, 50]},
        get_vocab_size=lambda: V,
        max_model_len=512,
    )
    return SimpleNamespace(model_config=model, parallel_config=SimpleNamespace())


OTHERS = [
    config("LlamaForCausalLM", False),
    config("LLaDA2MoeModelLM", True),
    config("NemotronLabsDiffusionModel", False),  # from left to right
]
