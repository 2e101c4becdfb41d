"""Layout of SDAR directories: tensors have the names of Qwen3's."""

import re

from dlm.models.routed_layout import Names, layout_of
from dlm.models.sdar.config import MODEL_TYPES, config_of

_NAMES = Names(
    stack="model.",
    modules={},
    joined=None,
    quantised=re.compile(r"model\.layers\.\d+\.mlp\.(experts\.\d+\.)?(gate|up|down)_proj\.weight"),
)
LAYOUT = layout_of(MODEL_TYPES, config_of, _NAMES, ("lm_head", "*self_attn*", "*mlp.gate"))
