"""Fields of a `config.json` that a family reads by itself, strictly: errors name the field, and
what would have been right."""

from collections.abc import Mapping
from typing import Any

from dlm.models import CheckpointError
from dlm.models.json_files import Range, check_number, shown
from dlm.models.shape import LayerConfig

INT32 = 2**31 - 1
COUNT = Range(int, 1, 2**16)  # of heads and experts, and head dims
WIDTH = Range(int, 1, 2**22)
LAYERS = Range(int, 1, 1000)
POSITIONS = Range(int, 1, INT32)
TOKENS = Range(int, 1, 2**24)
TOKEN = Range(int, 0, INT32)
EPSILON = Range(float, 0, 1)
THETA = Range(float, 0, 1e12)
FRACTION = Range(float, 0, 1)
SCALE = Range(float, 0, 1e6)
NONE_OR_MORE = Range(int, 0, 2**16)


class Fields:
    """Fields of a parsed `config.json`, or of an object in it; null counts as absent."""

    def __init__(self, settings: Mapping[str, Any], place: str = ""):
        """`place` precedes the names of fields in errors."""
        self._settings, self._place = settings, place

    def number(self, name: str, allowed: Range, default: int | float | None = None) -> Any:
        """Return a number. Raises `CheckpointError` if it is not allowed, or if it is absent and
        has no default."""
        value = self._settings.get(name)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(
                f"config.json: {self._place}{name} must be {allowed}, and it is missing"
            )
        check_number(f"config.json: {self._place}{name}", value, allowed)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean. Raises `CheckpointError` for anything else."""
        value = self._settings.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self._error(name, "true or false", value)
        return value

    def require(self, values: Mapping[str, Any]) -> None:
        """Raise `CheckpointError` for a field that is there with another value than that of
        `values`: these are all that is computed here."""
        for name, computed in values.items():
            value = self._settings.get(name)
            if value is None:
                continue
            if value != computed or isinstance(value, bool) != isinstance(computed, bool):
                raise self._error(name, shown(computed), value)

    def model_type(self, known: tuple[str, ...]) -> None:
        """Raise `CheckpointError` for another model type than those of a family."""
        value = self._settings.get("model_type")
        if value not in known:
            raise self._error("model_type", " or ".join(map(shown, known)), value)

    def rope(self, name: str, kind: str, part: float = 1.0) -> "Fields | None":
        """Return the fields of a rotary embedding; None if they are absent. Raises
        `CheckpointError` for other frequencies than those of `kind`, and if another part of a head
        turns than `part`."""
        settings = self._settings.get(name)
        if settings is None:
            return None
        if not isinstance(settings, Mapping):
            raise self._error(name, "an object", settings)
        rope = Fields(settings, f"{self._place}{name}.")
        type_ = settings.get("rope_type", settings.get("type", "default"))
        if type_ != kind:
            raise rope._error("rope_type", shown(kind), type_)
        rope.require({"partial_rotary_factor": part})
        return rope

    def theta(self, part: float = 1.0) -> float:
        """Return the base of the rotary embedding's frequencies, from `rope_parameters` or, as
        older files have it, from the top. Raises `CheckpointError` for scaled frequencies, and if
        another part of a head turns than `part`."""
        for name in ("rope_parameters", "rope_scaling"):
            rope = self.rope(name, "default", part)
            if rope is not None and rope._settings.get("rope_theta") is not None:
                return float(rope.number("rope_theta", THETA))
        return float(self.number("rope_theta", THETA))

    def _error(self, name: str, right: str, value: Any) -> CheckpointError:
        return CheckpointError(
            f"config.json: {self._place}{name} must be {right}, got {shown(value)}"
        )

    def geometry(self) -> dict[str, Any]:
        """Return the fields of a `DecoderConfig` that families write alike: layers with the same
        attention."""
        hidden, heads = self.number("hidden_size", WIDTH), self.number("num_attention_heads", COUNT)
        layer = LayerConfig(
            kind="full_attention",
            head_dim=self._head_dim(hidden, heads),
            kv_heads=self.divisor("num_key_value_heads", COUNT, "num_attention_heads", heads),
        )
        return {
            "vocab_size": self.number("vocab_size", TOKENS),
            "hidden_size": hidden,
            "intermediate_size": self.number("intermediate_size", WIDTH),
            "heads": heads,
            "layers": (layer,) * self.number("num_hidden_layers", LAYERS),
            "max_positions": self.number("max_position_embeddings", POSITIONS),
            "eps": self.number("rms_norm_eps", EPSILON),
            "tied": self.flag("tie_word_embeddings", False),
        }

    def _head_dim(self, hidden: int, heads: int) -> int:
        """Return the size of a head, an even number; by default the heads share `hidden`."""
        size = self.number("head_dim", COUNT, max(1, hidden // heads))
        if size % 2:
            raise self._error("head_dim", "an even number", size)
        return size

    def divisor(self, name: str, allowed: Range, of: str, whole: int) -> int:
        """Return a number that must divide `whole`, the value of the field `of`."""
        value = self.number(name, allowed)
        if whole % value:
            raise CheckpointError(
                f"config.json: {name} must divide {of}, which is {whole}, got {value}"
            )
        return value

    def at_most(self, name: str, allowed: Range, of: str, most: int) -> int:
        """Return a number that must not be above `most`, the value of the field `of`."""
        value = self.number(name, allowed)
        if value > most:
            raise CheckpointError(
                f"config.json: {name} must be at most {of}, which is {most}, got {value}"
            )
        return value
