"""Vision tower of a checkpoint: from images to soft tokens of a prompt.

The image processor, the network and the projection are transformers' own, since they run once for
an image and not in a step. A directory has a tower if it holds the settings of an image processor
and the tower's weights. One image is computed at a time, so that it never depends on others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from dlm.models import CheckpointError, ModelError
from dlm.models.diffusion_gemma.tensors import VISION
from dlm.models.image_tokens import EncodedImage, EncodedImages
from dlm.models.json_files import read_json
from dlm.models.tensor_files import read_some

if TYPE_CHECKING:
    from PIL.Image import Image

_SETTINGS = ("preprocessor_config.json", "processor_config.json")  # of an image processor


@dataclass(frozen=True, slots=True)
class Patches:
    """Image as the tower reads it."""

    pixels: Float[Tensor, "1 p n"]
    positions: Int64[Tensor, "1 p 2"]  # of patches in the image; -1 for padding
    tokens: int  # soft tokens that it becomes


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageMarkers:
    """Token ids by which the chat template and the model mark an image."""

    image: int  # written by the template; a soft token
    begin: int
    end: int


class VisionTower:
    """Image processor and network. Any number of threads may use it."""

    def __init__(
        self,
        processor: Any,
        tower: nn.Module,
        projection: nn.Module,
        markers: ImageMarkers,
        images: EncodedImages,
    ):
        """`projection` maps outputs of the `tower` to the text stack's embeddings; `images` has the
        images that the text stack can read."""
        self._processor, self._tower, self._projection = processor, tower, projection
        self._images, self._lock, self.markers = images, Lock(), markers

    @classmethod
    def load(
        cls,
        directory: Path,
        images: EncodedImages,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "VisionTower | None":
        """Load the tower of a directory; None if it has none. Raises `CheckpointError` if its
        tensors do not fit its config."""
        if not any((directory / name).exists() for name in _SETTINGS):
            return None
        tensors = read_some(directory, VISION)
        if not tensors:
            return None
        # Importing these takes seconds
        from huggingface_hub.errors import StrictDataclassError
        from transformers import AutoModel, DiffusionGemmaConfig
        from transformers.models.diffusion_gemma.modeling_diffusion_gemma import (
            DiffusionGemmaMultimodalEmbedder,
        )
        from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

        settings = read_json(directory / "config.json")
        try:
            config: Any = DiffusionGemmaConfig(**settings)
            processor = Gemma4ImageProcessorPil.from_pretrained(directory, local_files_only=True)
            tower = AutoModel.from_config(config.vision_config, dtype=dtype)
            projection = DiffusionGemmaMultimodalEmbedder(config.vision_config, config.text_config)
        except (StrictDataclassError, LookupError, OSError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{directory}: transformers refuses its vision tower: {error}"
            ) from error
        for module, prefix in zip((tower, projection), VISION, strict=True):
            _fill(module, prefix, tensors)
            module.to(device, dtype).eval().requires_grad_(False)
        markers = ImageMarkers(
            image=config.image_token_id, begin=config.boi_token_id, end=config.eoi_token_id
        )
        return cls(processor, tower, projection, markers, images)

    @property
    def most_tokens(self) -> int:
        """Maximum number of soft tokens of an image."""
        return self._processor.max_soft_tokens

    def patches(self, image: "Image") -> Patches:
        """Return an image in the tower's form. Raises `ModelError` for one that it cannot take,
        such as one without pixels."""
        try:
            read = self._processor(image.convert("RGB"), return_tensors="pt")
        except (ArithmeticError, ValueError) as error:
            width, height = image.size
            raise ModelError(
                f"the image processor refuses it: it has {width} by {height} pixels"
            ) from error
        tokens = int(read["num_soft_tokens_per_image"][0])
        return Patches(read["pixel_values"], read["image_position_ids"], tokens)

    @torch.inference_mode()
    def encode(self, patches: Patches) -> EncodedImage:
        """Return the image's soft tokens, which the text stack reads as long as the result
        lives."""
        weight = next(self._projection.parameters())
        with self._lock:
            states = self._tower(
                pixel_values=patches.pixels.to(weight),
                pixel_position_ids=patches.positions.to(weight.device),
            ).last_hidden_state
            embeddings = self._projection(states)
        return self._images.add(embeddings)


def _fill(module: nn.Module, prefix: str, tensors: Mapping[str, Tensor]) -> None:
    own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    try:
        module.load_state_dict(own)
    except RuntimeError as error:  # names all problems
        raise CheckpointError(f"{prefix}* does not fit config.json: {error}") from error
