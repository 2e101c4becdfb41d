"""A small checkpoint as wide as the 26B: both kinds of layers, its head dimensions, its experts'
sizes, in ModelOpt's layout. Errors that occur only at these widths are found here."""

import re

import nvfp4_files
import pytest
import torch
from safetensors import safe_open

from dlm.models import checkpoint

WIDTHS = {
    "vocab_size": 256,
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "moe_intermediate_size": 704,
    "num_experts": 4,
    "top_k_experts": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 2,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}
# Type by suffix, and shapes of gate or up, and of down, as in NVIDIA's file.
STORED = {
    "weight": ("U8", [704, 1408], [2816, 352]),
    "weight_scale": ("F8_E4M3", [704, 176], [2816, 44]),
    "weight_scale_2": ("F32", [], []),
    "input_scale": ("F32", [], []),
}
# fp32 on both sides; sums have 2,816 terms, and logits are capped at 30. Observed: 2e-5.
CLOSE = {"rtol": 1e-5, "atol": 1e-4}


@pytest.mark.exhaustive
def test_at_the_26b_s_widths_states_and_logits_are_those_of_transformers(reference, tmp_path, rng):
    theirs = reference.make(tmp_path, **WIDTHS)
    meant = nvfp4_files.write(tmp_path, nvfp4_files.MODELOPT)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        headers = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        for name, header in headers.items():
            if found := re.fullmatch(r".*\.experts\.\d\.(gate|up|down)_proj\.(\w+)", name):
                dtype, wide, narrow = STORED[found[2]]
                assert header.get_dtype() == dtype
                assert header.get_shape() == (narrow if found[1] == "down" else wide)
    assert sum(".experts." in name for name in headers) == 2 * 4 * 3 * 4

    theirs.load_state_dict(meant, strict=False)
    del meant
    model = checkpoint.load(tmp_path)
    prompt = torch.randint(256, (20,), generator=rng).tolist()
    canvas = torch.randint(256, (reference.CANVAS,), generator=rng)
    reference.assert_parity(model, theirs, prompt, canvas, steps=2, **CLOSE)
    (tmp_path / "model.safetensors").unlink()  # 0.7 GB
