"""Prompts as tokens: texts by the chat template, images by the model's vision tower.

The template writes one token for each image. It becomes the beginning of an image, its soft tokens
and its end. Images in results of tools stay there if the template writes their tokens; otherwise
they stand after these results (`images_after_results`). The soft tokens of images that were seen
lately are kept, by a hash of the image.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

from dlm.chat import Chat
from dlm.errors import RequestError
from dlm.images import (
    Picture,
    RemoteImage,
    fetched_images,
    images_after_results,
    pictures,
    placed_images,
)
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

    def fetched(self, request: Request) -> Request:
        """Return a request whose images have been counted, and fetched if they are addresses.
        Raises `RequestError` for images that this model does not read, or that are not served."""
        messages = request.messages or ()
        placed = placed_images(messages)
        if not placed:
            return request
        if self._tower is None:
            place = placed[0][0]
            raise RequestError(
                f"{place} is an image: this model reads text; its directory holds no vision tower "
                "with an image processor",
                field=place.partition("[")[0],
            )
        self._policy.check_images(len(placed))
        if not any(isinstance(image, RemoteImage) for _, image in placed):
            return request
        return replace(request, messages=fetched_images(messages, self._policy.image_hosts))

    def _parts(self, request: Request) -> tuple[list[int], VisionTower | None, list[Picture]]:
        """Return the prompt with a mark for each image, the tower that reads the images, and the
        images. The tower is None if there is no image."""
        request = self.fetched(request)
        shown, tower = pictures(request.messages or ()), self._tower
        if shown and tower is not None:
            tokens = self._marked(request, tower.markers.image, len(shown))
        else:
            tokens, tower = self._chat.prompt(request), None
        check_tokens("prompt: token", tokens, self._vocab_size)
        return tokens, tower, shown

    def _marked(self, request: Request, mark: int, count: int) -> list[int]:
        """Return the prompt with `count` images where they stand, or, if the template does not mark
        all of them there, with those in results of tools after these results."""
        with suppress(RequestError):  # a template may take no list in a result
            tokens = self._chat.prompt(request)
            if tokens.count(mark) == count:
                return tokens
        messages = images_after_results(request.messages or ())
        return self._chat.prompt(replace(request, messages=messages))

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
                "it takes images in the messages of users and in results of tools",
                field="messages",
            )
        for token in tokens:
            if token == markers.image:
                joined += (markers.begin, *left.pop(), markers.end)
            else:
                joined.append(token)
        return joined
