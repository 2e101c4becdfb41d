"""Families of models, by the architecture that a `config.json` names: the one list of them.

`register` adds a family of another package.
"""

from dlm.models import CheckpointError
from dlm.models.diffusion_gemma.family import BUILT_IN as BUILT_IN
from dlm.models.diffusion_gemma.family import DIFFUSION_GEMMA
from dlm.models.family import Family, JsonFile
from dlm.models.llada2.family import LLADA2
from dlm.models.nemotron_diffusion.family import NEMOTRON_DIFFUSION
from dlm.models.sdar.family import SDAR
from dlm.root_error import DlmError

DEFAULT: Family = DIFFUSION_GEMMA
"""Family of the built-in checkpoint, and of models that are passed in as objects."""

_FAMILIES: dict[str, Family] = {
    each.name: each for each in (DEFAULT, LLADA2, NEMOTRON_DIFFUSION, SDAR)
}


def register(family: Family) -> None:
    """Make a family known. Raises `DlmError` if another one has its name."""
    if _FAMILIES.setdefault(family.name, family) is not family:
        raise DlmError(f"family {family.name!r} is registered already")


def family_of(config: JsonFile) -> Family:
    """Return the family of a parsed `config.json`. Raises `CheckpointError` if it is of none."""
    for family in _FAMILIES.values():
        if family.answers_to(config):
            return family
    names = [repr(name) for family in _FAMILIES.values() for name in family.model_types[:1]]
    raise CheckpointError(
        f"config.json: model_type is {config.get('model_type')!r:.60}, not {' or '.join(names)}"
    )
