"""Names of the tensors of a file, and those of the parameters of a model.

The text stack lies under `model.decoder.`; the encoder shares its weights and adds one
scalar per layer. A vision tower may be present; `vision.py` reads it.
"""

import re

_DECODER = "model.decoder."
_ENCODER_SCALAR = re.compile(r"model\.encoder\.language_model\.layers\.(\d+)\.layer_scalar")
VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")


def parameter_name(tensor: str) -> str | None:
    """Return the model's name of a tensor on disk; None if the text stack does not need it."""
    if tensor.startswith(VISION):
        return None
    if scalar := _ENCODER_SCALAR.fullmatch(tensor):
        return f"layers.{scalar[1]}.encoder_scalar"
    return tensor.removeprefix(_DECODER)


def tensor_name(parameter: str) -> str:
    """Invert `parameter_name`."""
    if scalar := re.fullmatch(r"layers\.(\d+)\.encoder_scalar", parameter):
        return f"model.encoder.language_model.layers.{scalar[1]}.layer_scalar"
    return _DECODER + parameter
