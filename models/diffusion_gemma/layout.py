"""Layout of DiffusionGemma directories: config, network, tensors and quantisation."""

from functools import partial

from dlm.models import adapting
from dlm.models.diffusion_gemma import quantisation, tensors
from dlm.models.diffusion_gemma.config import MODEL_TYPES, ModelConfig
from dlm.models.diffusion_gemma.model import DiffusionGemma
from dlm.models.layout import Layout, Quantisation

LAYOUT = Layout(
    model_types=MODEL_TYPES,
    config=ModelConfig.from_hf,
    network=DiffusionGemma,
    parameter_name=tensors.parameter_name,
    adapt=partial(adapting.adapt, tensors.tensor_name),
    places=partial(adapting.places, tensors.tensor_name, "stacks"),
    quantisation=Quantisation(
        blocks=quantisation.blocks,
        matrices=quantisation.matrices,
        input_scales=quantisation.input_scales,
        names=quantisation.names,
        ignored=quantisation.IGNORED,
    ),
)
