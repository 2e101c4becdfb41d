"""DiffusionGemma as a family: its config, network, layout and quantisation."""

from dlm.models.diffusion_gemma import layout, quantisation
from dlm.models.diffusion_gemma.config import MODEL_TYPES, ModelConfig
from dlm.models.diffusion_gemma.model import DiffusionGemma
from dlm.models.family import Family, Quantisation

DIFFUSION_GEMMA = Family(
    model_types=MODEL_TYPES,
    config=ModelConfig.from_hf,
    network=DiffusionGemma,
    parameter_name=layout.parameter_name,
    tensor_name=layout.tensor_name,
    adapt=layout.adapt,
    places=layout.places,
    quantisation=Quantisation(
        blocks=quantisation.blocks,
        matrices=quantisation.matrices,
        input_scales=quantisation.input_scales,
        names=quantisation.names,
        ignored=quantisation.IGNORED,
    ),
)
