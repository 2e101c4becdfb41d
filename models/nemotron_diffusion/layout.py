"""Layout of Nemotron-Labs-Diffusion directories: config, network, tensors and quantisation."""

from functools import partial

from dlm.models import adapting, decoder_layout
from dlm.models.layout import Layout
from dlm.models.nemotron_diffusion.config import MODEL_TYPE, read_config
from dlm.models.nemotron_diffusion.network import NemotronDiffusion

_STACK, _HEAD = "encoder.", "diffusion_head"


def parameter_name(tensor: str) -> str:
    """Return the network's name of a tensor on disk."""
    if tensor.startswith(f"{_HEAD}."):
        return f"lm_head{tensor.removeprefix(_HEAD)}"
    return tensor.removeprefix(_STACK)


def tensor_name(parameter: str) -> str:
    """Invert `parameter_name`, also for names of modules."""
    if parameter.partition(".")[0] == "lm_head":
        return f"{_HEAD}{parameter.removeprefix('lm_head')}"
    return f"{_STACK}{parameter}"


LAYOUT = Layout(
    model_types=(MODEL_TYPE,),
    config=read_config,
    network=NemotronDiffusion,
    parameter_name=parameter_name,
    adapt=partial(adapting.adapt, tensor_name),
    places=partial(adapting.places, tensor_name, "matrices"),
    quantisation=decoder_layout.quantisation(tensor_name, ignored=(_HEAD, "*embed_tokens*")),
)
