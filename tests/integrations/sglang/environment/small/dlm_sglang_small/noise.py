"""DiffusionGemma on a CPU: SGLang serves it on CUDA alone.

Its model's file and its algorithm stay as they are. Four things around them change: the check of
the device, attention within a canvas, which SGLang's backend for CPUs knows under another name, the
name of an activation, and that it reads images, since a small checkpoint has no processor of them.
"""

from typing import Any


def run_on_cpu() -> None:
    from sglang.srt.arg_groups.overrides import declare_resolution
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.dllm.algorithm.gemma4_renoise import Gemma4Renoise
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.layers.moe import fused_moe_native
    from sglang.srt.layers.radix_attention import AttentionType

    def configure(cls: Any, server_args: Any) -> None:
        declare_resolution(
            server_args, cls.__name__, disable_radix_cache=True, chunked_prefill_size=-1
        )

    Gemma4Renoise.configure_server_args = classmethod(configure)
    Gemma4Renoise.supported_attention_backends = ("torch_native",)
    attend, experts = TorchNativeAttnBackend.forward_extend, fused_moe_native.moe_forward_native

    make = ModelConfig.__init__

    def without_images(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options | {"enable_multimodal": False})

    def attending(self: Any, q: Any, k: Any, v: Any, layer: Any, *args: Any, **how: Any) -> Any:
        if layer.attn_type == AttentionType.DECODER_BIDIRECTIONAL:
            layer.attn_type = AttentionType.ENCODER_ONLY
        return attend(self, q, k, v, layer, *args, **how)

    def mixed(layer: Any, x: Any, topk_output: Any, config: Any) -> Any:
        if config.activation == "gelu_tanh":  # what this function calls "gelu"
            config.activation = "gelu"
        return experts(layer, x, topk_output, config)

    ModelConfig.__init__ = without_images  # type: ignore[method-assign]
    TorchNativeAttnBackend.forward_extend = attending
    fused_moe_native.moe_forward_native = mixed
