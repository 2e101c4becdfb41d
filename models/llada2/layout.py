"""Layout of LLaDA2 directories, which join the projections before attention."""

import re

from dlm.models.llada2.config import MODEL_TYPES, config_of
from dlm.models.routed_layout import Names, layout_of

_NAMES = Names(
    stack="model.",
    modules={
        "embed_tokens": "word_embeddings",
        "self_attn": "attention",
        "q_norm": "query_layernorm",
        "k_norm": "key_layernorm",
        "o_proj": "dense",
    },
    joined="query_key_value",
    quantised=re.compile(r"model\.layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj\.weight"),
)
_FLOATS = "lm_head", "*attention*", "*mlp.gate", "*shared_experts*", "*layers.0.*"
LAYOUT = layout_of(MODEL_TYPES, config_of, _NAMES, _FLOATS)
