"""Prompts as tokens: texts by the chat template, images by the model's vision tower.

The template writes one token for each image. It becomes the beginning of an image, its soft tokens
and its end. The soft tokens of images that were seen lately are kept, by a hash of the image.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import NamedTuple

from dlm.chat import Chat
from dlm.errors import RequestError
from dlm.images import Picture, images_in, pictures
from dlm.models import ModelError
from dlm.models.image_tokens import EncodedImage
from dlm.models.vision import Patches, VisionTower
from dlm.policy import Policy
from dlm.request import Request, check_tokens

_KEPT = 64  # images


class PromptTokens(NamedTuple):
    tokens: list[int]
    images: tuple[EncodedImage, ...] = ()  # that some tokens stand for: to be kept alive


class Prompts:
    """Prompts for one model. Any number of threads may use it."""

    def __init__(self, chat: Chat, tower: VisionTower | None, policy: Policy, vocab_size: int):
        self._chat, self._tower, self._policy = chat, tower, policy
        self._vocab_size = vocab_size
        self._known: OrderedDict[bytes, EncodedImage] = OrderedDict()  # the latest is last
        self._lock = Lock()

    def encode(self, request: Request) -> PromptTokens:
        """Return a request's prompt for the model. Raises `RequestError`."""
        tokens, tower, shown = self._parts(request)
        if tower is None:
            return PromptTokens(tokens)
        images = tuple(self._image(tower, picture) for picture in shown)
        return PromptTokens(self._joined(tower, tokens, [image.tokens for image in images]), images)

    def tokens(self, request: Request) -> list[int]:
        """Return a request's prompt in tokens of the vocabulary, of the same length. Raises
        `RequestError`."""
        tokens, tower, shown = self._parts(request)
        if tower is None:
            return tokens
        soft = ([tower.markers.image] * self._patches(tower, each).tokens for each in shown)
        return self._joined(tower, tokens, soft)

    def _parts(self, request: Request) -> tuple[list[int], VisionTower | None, list[Picture]]:
        """Return the prompt with a mark for each image, the tower that reads the images, and the
        images. The tower is None if there is no image."""
        tokens, messages = self._chat.prompt(request), request.messages or ()
        check_tokens("prompt: token", tokens, self._vocab_size)
        number = images_in(messages)
        if not number:
            return tokens, None, []
        if self._tower is None:
            raise RequestError(
                "messages hold an image: this model reads text; its directory holds no vision "
                "tower with an image processor",
                field="messages",
            )
        self._policy.check_images(number)
        return tokens, self._tower, [*pictures(messages, self._policy.image_hosts)]

    def _image(self, tower: VisionTower, picture: Picture) -> EncodedImage:
        digest = picture.digest
        with self._lock:  # one image at a time is in memory, decoded
            image = self._known.pop(digest, None)
            if image is None:
                image = tower.encode(self._patches(tower, picture))
            self._known[digest] = image
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return image

    def _patches(self, tower: VisionTower, picture: Picture) -> Patches:
        try:
            return tower.patches(picture.decoded(self._policy.max_image_pixels))
        except ModelError as error:
            field = picture.place.partition("[")[0]
            raise RequestError(f"{picture.place}: {error}", field=field) from error

    def _joined(
        self, tower: VisionTower, tokens: Sequence[int], soft: Iterable[Sequence[int]]
    ) -> list[int]:
        """Return `tokens` with each image's mark replaced by its tokens."""
        markers, left, joined = tower.markers, [*soft][::-1], list[int]()
        marks = tokens.count(markers.image)
        if marks != len(left):
            raise RequestError(
                f"messages hold {len(left)} images, and this model's chat template marks {marks}: "
                "it takes images in the messages of users",
                field="messages",
            )
        for token in tokens:
            if token == markers.image:
                joined += (markers.begin, *left.pop(), markers.end)
            else:
                joined.append(token)
        return joined
