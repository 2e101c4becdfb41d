"""Configs as transformers writes them."""

import json

from transformers import DiffusionGemmaConfig

from dlm.models import ModelConfig

SLIDING, FULL = "sliding_attention", "full_attention"


def test_exceptions_of_ten_layers_and_more_are_read_by_their_numbers(tmp_path):
    """transformers 5.23 calls the sixth of them "05", so that they sort."""
    text = {
        "num_hidden_layers": 12,
        "layer_types": ([SLIDING] * 5 + [FULL]) * 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 64,
    }
    DiffusionGemmaConfig(text_config=text).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert {*written["text_config"]["per_layer_config"]} == {"05", "11"}
    layers = ModelConfig.from_hf(written).layers
    assert [layer.kind for layer in layers] == text["layer_types"]
    assert [layer.head_dim for layer in layers] == ([256] * 5 + [512]) * 2
    assert [layer.kv_heads for layer in layers] == ([8] * 5 + [2]) * 2
