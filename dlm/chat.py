"""Prompts as tokens: texts by the model's chat template (`Chat`), with images by its vision tower
(`Prompts`).

The caller's text is text, even if it spells a control token: only the template writes these. So
each character of the caller's with which a control token could begin is replaced by a stand-in
before the template is rendered; afterwards the caller's characters can be distinguished from the
template's. Tags that are tokens, such as `<tool_call>` and `<think>`, are the template's alone too,
if it writes them or they surround reasoning. One drawback: a template that looks for control tokens
in a message, to strip its reasoning for example, finds none.

The template writes one token for each image. It becomes the beginning of an image, its soft tokens
and its end. Images in results of tools stay there if the template writes their tokens; otherwise
they stand after these results (`images_after_results`). The soft tokens of images that were seen
lately are kept, by a hash of the image.
"""

import copy
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dlm.chat_template import ChatTemplate
from dlm.errors import RequestError, TemplateError
from dlm.grammar.regex import SURROGATES
from dlm.grammar.schema.documents import without_nulls
from dlm.grammar.specs.tool_forms import function_of
from dlm.images import (
    Picture,
    RemoteImage,
    fetched_images,
    image_error,
    images_after_results,
    pictures,
    placed_images,
    without_pictures,
)
from dlm.models import ModelError
from dlm.models.families import DEFAULT
from dlm.models.family import ChatMarkup
from dlm.policy import Policy
from dlm.request import Request, check_tokens
from dlm.tokenizer_loading import load_tokenizer

if TYPE_CHECKING:
    from dlm.loop.interfaces import ImageReader
    from dlm.models.image_tokens import EncodedImage

# Hieroglyphs are rare, and no filter of a template changes or escapes them.
_STAND_INS = [chr(c) for c in range(0x13000, 0x13400)]
_BRACKETS = "<["  # with which names of tags begin, such as <tool_call> and <think>
_PIECE = 65_536  # characters searched at a time
_KEPT = 64  # images
_IMAGES_AT_MOST = 4  # images of the largest size that one request may have


class Chat:
    """Tokenizer and chat template. Neither is ever changed, so any number of threads may use
    them."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template_file: str = "chat template",
        markup: ChatMarkup = DEFAULT.markup,
    ):
        """`template_file` is the name of the chat template's file, for errors. `markup` is that of
        the model's family, by default the built-in model's."""
        self.tokenizer = tokenizer
        self._template_file, self._lock = template_file, Lock()
        self._templates: dict[str, ChatTemplate] = {}  # by source; a tokenizer has one or two
        self._turn = self._encode(markup.turn) if markup.turn else []
        self._no_thought = self._encode(markup.empty_thought) if markup.turn else []
        added, written = tokenizer.added_tokens_decoder, str(tokenizer.chat_template or "")
        tags = {
            token.content: i
            for i, token in added.items()
            if not token.special
            and token.content[:1] in _BRACKETS
            and (token.content in written or token.content in (markup.thought or ()))
        }
        self.control = {token.content: i for i, token in added.items() if token.special}
        self._control = self.control | tags  # that only the template may write
        self._tags = re.compile("|".join(map(re.escape, tags)) or "(?!)")
        names = sorted(self._control, key=len, reverse=True)  # longest first, as in the tokenizer
        self._names = re.compile("|".join(map(re.escape, names)) or "(?!)")
        self._longest_name = len(names[0]) if names else 0

    @classmethod
    def load(cls, directory: str | Path, markup: ChatMarkup = DEFAULT.markup) -> "Chat":
        """Load the tokenizer of a directory, and compile its chat template if there is one. Raises
        `DlmError` for files that cannot be used."""
        directory = Path(directory)
        template = directory / "chat_template.jinja"
        if not template.is_file():
            template = directory / "tokenizer_config.json"
        chat = cls(load_tokenizer(directory), str(template), markup)
        if chat.tokenizer.chat_template is not None:
            for name in ("default", "tool_use"):
                with suppress(RequestError):  # several templates, none of which is the default
                    chat.template(name)
        return chat

    def prompt(self, request: Request) -> list[int]:
        """Return the prompt of a request as tokens. Without thinking, an empty thought channel is
        added where the model's turn has just begun: the model would write it itself, but no grammar
        allows it. Only raw tokens without a constraint stay exactly as they are."""
        if request.is_raw:
            tokens = self.raw(request.text) if request.text else list(request.token_ids or ())
            if request.constraint is None:
                return tokens
        else:
            messages = request.messages or [{"role": "user", "content": request.prompt}]
            tokens = self._render(messages, request.tools, request.thinking)
        return tokens if request.thinking else tokens + self.no_thought_after(tokens)

    def no_thought_after(self, prompt: Sequence[int]) -> list[int]:
        """Return an empty thought channel if `prompt` ends where the model's turn begins."""
        opened = bool(self._turn) and list(prompt[-len(self._turn) :]) == self._turn
        return list(self._no_thought) if opened else []

    def raw(self, text: str) -> list[int]:
        """Return the tokens of a text in which the names of control tokens are control tokens."""
        if SURROGATES.search(text):
            raise RequestError("the text has a lone surrogate, which is not text")
        begin, tokens = self.tokenizer.bos_token_id, self._encode(text)
        if isinstance(begin, int) and tokens[:1] != [begin]:
            tokens.insert(0, begin)
        return tokens

    def template(self, name: str = "default") -> ChatTemplate:
        """Return the chat template for conversations; of several, the one of this name, or the
        default. Raises `TemplateError` if it cannot be used, and `RequestError` if there is
        none."""
        source: Any = self.tokenizer.chat_template
        if isinstance(source, Mapping):
            source = source.get(name, source.get("default"))
        if source is None:
            raise RequestError("this model has no chat template: give token_ids, not messages")
        if not isinstance(source, str):
            raise TemplateError(
                f"{self._template_file}: the chat template must be a text, got {source!r:.40}"
            )
        with self._lock:
            template = self._templates.get(source)
            if template is None:
                special = {
                    key: value if isinstance(value, list) else str(value)
                    for key, value in self.tokenizer.special_tokens_map.items()
                }
                template = ChatTemplate(source, self._template_file, special)
                self._templates[source] = template
        return template

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        thinking: bool,
    ) -> list[int]:
        messages = [*map(without_pictures, messages)]
        table = self._stand_ins([messages, tools])
        template = self.template("tool_use" if tools else "default")
        text = template.render(
            [_replaced(message, table) for message in messages],
            [_replaced(_declared(tool), table) for tool in tools],
            thinking,
        )
        return self._tokenize(text, table)

    def _stand_ins(self, written: Any) -> dict[int, str]:
        """Return the stand-in of each character that needs one; empty if none begins a control
        token. No stand-in occurs in the caller's text, so each one in a rendering can be replaced
        back."""
        used = set[str]().union(*(leaf for leaf in leaves(written) if isinstance(leaf, str)))
        if SURROGATES.search("".join(used)):
            raise RequestError("messages have a lone surrogate, which is not text")
        begin = sorted({name[0] for name in self._control} & used)
        free = [c for c in _STAND_INS if c not in used]
        if len(free) < len(begin):
            raise RequestError(
                "messages hold every hieroglyph of U+13000 to U+133FF: leave one out"
            )
        return {ord(c): stand_in for c, stand_in in zip(begin, free, strict=False)}

    def _tokenize(self, rendered: str, table: Mapping[int, str]) -> list[int]:
        """Tokenize a rendering; control tokens that only the caller's text spells stay text."""
        text = rendered
        for c, stand_in in table.items():
            text = text.replace(stand_in, chr(c))
        names = list(self._named(rendered))
        if [n.span() for n in names] == [n.span() for n in self._named(text)]:
            return self._encode(text)
        tokens, at = [], 0
        for name in names:
            tokens += [*self._spell(text[at : name.start()]), self._control[name[0]]]
            at = name.end()
        return tokens + self._spell(text[at:])

    def _named(self, text: str) -> Iterator[re.Match[str]]:
        """Yield the names of control tokens, a piece at a time: no other thread runs during a
        search."""
        at = 0
        while at < len(text):
            end = at + _PIECE
            matches = self._names.finditer(text, at, end + self._longest_name)
            at = end
            for name in matches:
                if name.start() >= end:
                    break
                yield name
                at = max(at, name.end())

    def _spell(self, text: str) -> list[int]:
        """Tokenize `text` as text, including the names of control tokens."""
        # The tokenizer splits no name that is not special: these are split within.
        ends = [*(tag.start() + 1 for tag in self._tags.finditer(text)), len(text)]
        parts = [text[begin:end] for begin, end in pairwise([0, *ends])]
        tokens = [*chain.from_iterable(self._spelled(parts))]
        if not set(self._control.values()).isdisjoint(tokens):
            raise RequestError("messages spell a control token that the tokenizer cannot split")
        return tokens

    def _spelled(self, parts: list[str]) -> Iterator[list[int]]:
        """Yield the tokens of each part, in which names of special tokens are text."""
        if self._speller is not None:  # one call for all: a text may have very many parts
            encodings = self._speller.encode_batch_fast(parts, add_special_tokens=False)
            return (encoding.ids for encoding in encodings)
        encode = partial(self.tokenizer.encode, add_special_tokens=False, split_special_tokens=True)
        return map(encode, parts)

    @cached_property
    def _speller(self) -> Any:
        """Backend that splits the names of special tokens; None: the tokenizer has no backend. This
        is a setting of a backend, which would affect all its users: hence a copy."""
        if not isinstance(self.tokenizer, PreTrainedTokenizerFast):
            return None
        speller = copy.deepcopy(self.tokenizer.backend_tokenizer)
        speller.encode_special_tokens = True
        return speller

    def _encode(self, text: str) -> list[int]:
        if isinstance(self.tokenizer, PreTrainedTokenizerFast):
            # The wrapper is slow. A batch lets other threads run.
            backend = self.tokenizer.backend_tokenizer
            return list(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        return self.tokenizer.encode(text, add_special_tokens=False)


def _declared(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool in the form for templates: with a schema of parameters, and without nulls."""
    function = function_of(tool)
    if function is None:
        return tool
    schema = function.get("parameters") or {"type": "object"}
    with suppress(RecursionError):  # too deep to be served, which is checked elsewhere
        schema = without_nulls(schema)
    if isinstance(schema, Mapping):
        function = {**function, "parameters": {"properties": {}, **schema}}
    return {"type": "function", "function": function}


def leaves(written: Any) -> Iterator[str | float | None]:
    """Yield all keys, and all values that hold no others. Raises `RequestError` for other than JSON
    data."""
    waiting = [written]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str | int | float | None):
            yield value
        elif isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            waiting += value
        else:
            raise RequestError(f"messages must be JSON data, got a {type(value).__name__}")


def _replaced(written: Any, table: Mapping[int, str]) -> Any:
    """Return a copy of `written` with each character in `table` replaced."""
    if isinstance(written, str):
        for c, stand_in in table.items():
            written = written.replace(chr(c), stand_in)
        return written
    if isinstance(written, Mapping):
        return {_replaced(k, table): _replaced(v, table) for k, v in written.items()}
    if isinstance(written, list | tuple):
        return [_replaced(value, table) for value in written]
    return written


class PromptTokens(NamedTuple):
    tokens: list[int]
    images: tuple["EncodedImage", ...] = ()  # that some tokens stand for: to be kept alive


class Prompts:
    """Prompts for one model. Any number of threads may use it."""

    def __init__(self, chat: Chat, tower: "ImageReader | None", policy: Policy, vocab_size: int):
        self._chat, self._tower, self._policy = chat, tower, policy
        self._vocab_size = vocab_size
        self._known: OrderedDict[bytes, EncodedImage] = OrderedDict()  # the latest is last
        self._lock = Lock()

    @property
    def reads_images(self) -> bool:
        """Whether requests may have images."""
        return self._tower is not None and self._policy.max_images > 0

    def encode(self, request: Request) -> PromptTokens:
        """Return a request's prompt for the model. Raises `RequestError`."""
        tokens, tower, shown = self._parts(request)
        if tower is None:
            return PromptTokens(tokens)
        self._check_pixels(shown)
        images = tuple(self._image(tower, picture) for picture in shown)
        return PromptTokens(
            self._with_images(tower, tokens, [image.tokens for image in images]), images
        )

    def tokens(self, request: Request) -> list[int]:
        """Return a request's prompt in tokens of the vocabulary, of the same length. Raises
        `RequestError`."""
        tokens, tower, shown = self._parts(request)
        if tower is None:
            return tokens
        self._check_pixels(shown)
        soft = ([tower.markers.image] * self._patches(tower, image).tokens for image in shown)
        return self._with_images(tower, tokens, soft)

    def fetched(self, request: Request) -> Request:
        """Return a request whose images have been counted, and fetched if they are addresses.
        Raises `RequestError` for images that this model does not read, or that are not served."""
        messages = request.messages or ()
        placed = placed_images(messages)
        if not placed:
            return request
        if self._tower is None:
            raise image_error(
                placed[0][0],
                "is an image: this model reads text; its directory holds no vision tower with an "
                "image processor",
            )
        self._policy.check_images(len(placed))
        if not any(isinstance(image, RemoteImage) for _, image in placed):
            return request
        return replace(request, messages=fetched_images(messages, self._policy.image_hosts))

    def _parts(self, request: Request) -> "tuple[list[int], ImageReader | None, list[Picture]]":
        """Return the prompt with a mark for each image, the tower that reads the images, and the
        images. The tower is None if there is no image."""
        request = self.fetched(request)
        shown, tower = pictures(request.messages or ()), self._tower
        if shown and tower is not None:
            tokens = self._marked(request, tower.markers.image, len(shown))
        else:
            tokens, tower = self._chat.prompt(request), None
        check_tokens("prompt: a token", tokens, self._vocab_size)
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

    def _check_pixels(self, shown: Sequence[Picture]) -> None:
        """Raise `RequestError` for images of too many pixels together, before any is decoded."""
        total, most = 0, _IMAGES_AT_MOST * self._policy.max_image_pixels
        for picture in shown if len(shown) > _IMAGES_AT_MOST else ():
            width, height = picture.size
            total += width * height
            if total > most:
                raise image_error(
                    picture.place,
                    f"brings the images of this request to {total} pixels; together they must have "
                    f"at most {most}",
                )

    def _image(self, tower: "ImageReader", picture: Picture) -> "EncodedImage":
        digest = picture.digest
        with self._lock:  # one image at a time is in memory, decoded
            image = self._known.pop(digest, None)
            if image is None:
                image = tower.encode(self._patches(tower, picture))
            self._known[digest] = image
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return image

    def _patches(self, tower: "ImageReader", picture: Picture) -> Any:
        try:
            return tower.patches(picture.decoded(self._policy.max_image_pixels))
        except ModelError as error:
            field = picture.place.partition("[")[0]
            raise RequestError(f"{picture.place}: {error}", field=field) from error

    def _with_images(
        self, tower: "ImageReader", tokens: Sequence[int], soft: Iterable[Sequence[int]]
    ) -> list[int]:
        """Return `tokens` with each image's mark replaced by its tokens."""
        markers, waiting, placed = tower.markers, [*soft][::-1], list[int]()
        marks = tokens.count(markers.image)
        if marks != len(waiting):
            raise RequestError(
                f"messages hold {len(waiting)} images, and this model's chat template marks "
                f"{marks} of them: "
                "images must be in messages of users or in results of tools",
                field="messages",
            )
        for token in tokens:
            if token == markers.image:
                placed += (markers.begin, *waiting.pop(), markers.end)
            else:
                placed.append(token)
        return placed
