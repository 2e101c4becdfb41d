"""Formats of quantised checkpoints, read from their configs."""

import pytest

from dlm.models import CheckpointError
from dlm.models.formats import COMPRESSED_TENSORS, MODELOPT, format_of

GROUP = {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}
PACKED = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}


@pytest.mark.parametrize(
    ("quantisation", "form"),
    [
        (None, None),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, MODELOPT),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, MODELOPT),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "NVFP4",
                "config_groups": {"group_0": GROUP},
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            },
            MODELOPT,
        ),
        (PACKED, COMPRESSED_TENSORS),
        ({**PACKED, "config_groups": {"group_0": GROUP}}, COMPRESSED_TENSORS),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "mixed-precision",
                "config_groups": {"group_0": {**GROUP, "format": "nvfp4-pack-quantized"}},
            },
            COMPRESSED_TENSORS,
        ),
    ],
)
def test_a_config_declares_the_format_of_its_weights(quantisation, form):
    assert format_of({} if quantisation is None else {"quantization_config": quantisation}) == form


def test_older_files_of_modelopt_declare_it_in_another_file():
    older = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    assert format_of({}, older) == MODELOPT
    assert format_of({"quantization_config": PACKED}, older) == COMPRESSED_TENSORS
    with pytest.raises(CheckpointError, match="quant_algo 'FP8' are not read"):
        format_of({}, {"quantization": {"quant_algo": "FP8"}})


@pytest.mark.parametrize(
    ("quantisation", "what"),
    [
        ({"quant_method": "awq"}, "quant_method 'awq'"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "quant_algo 'FP8'"),
        ({"quant_method": "modelopt"}, "quant_algo None"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "group_size 32"),
        ({**PACKED, "format": "pack-quantized"}, "format 'pack-quantized'"),
        (
            {**PACKED, "config_groups": {"a": GROUP, "b": {"format": "float-quantized"}}},
            "format 'float-quantized'",
        ),
        ({**PACKED, "config_groups": {"a": {"weights": {"group_size": 128}}}}, "group_size 128"),
    ],
)
def test_another_quantisation_is_refused_by_name(quantisation, what):
    with pytest.raises(CheckpointError, match=f"quantised with {what} are not read") as error:
        format_of({"quantization_config": quantisation})
    assert "what is: 'modelopt' with NVFP4" in str(error.value)


@pytest.mark.parametrize("quantisation", ["nvfp4", {**PACKED, "config_groups": ["a"]}])
def test_a_declaration_that_is_no_object_is_named(quantisation):
    with pytest.raises(CheckpointError, match="is no JSON object"):
        format_of({"quantization_config": quantisation})
