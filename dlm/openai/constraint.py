"""Reader of the one constraint in a body: the form of its text, and its tools."""

from collections.abc import Mapping
from typing import Any

from dlm.grammar import Spec
from dlm.openai.answer_format import FormatFields
from dlm.openai.body import validated
from dlm.openai.other_fields import check_old
from dlm.openai.tools import ToolFields, tools_spec
from dlm.policy import Policy


class ConstraintFields(FormatFields, ToolFields):
    """Fields of a body that constrain its answer."""

    def spec(self, policy: Policy) -> Spec | None:
        """Return the one constraint; None for free text. Raises `RequestError`.

        Tools constrain the answer unless `tool_choice` is "none". A `response_format` beside them
        constrains answers without calls.
        """
        spec = tools_spec(
            self.tools,
            policy,
            self.choice,
            parallel=self.parallel_tool_calls is not False,
            content=(content := self.content_spec(policy, bool(self.declared))),
            order=self.property_order,
        )
        return spec or content


class ConstraintBody(ConstraintFields):
    """Body whose fields without a constraint are not read."""

    @classmethod
    def check_names(cls, values: Mapping[str, Any]) -> None:
        check_old(values)


def constraint_of(body: Any, policy: Policy) -> Spec | None:
    """Return the one constraint in `body`; None for free text. Fields about other things are not
    read. Raises `RequestError`."""
    return validated(ConstraintBody.model_validate, body).spec(policy)
