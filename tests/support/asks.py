"""Prompts that the built-in model was trained for, and schemas of their answers."""

ASK = "Extract name, age as JSON. This is Olga Lopez, 61 years old."
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {  # arguments of a tool
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}


def turn(text: str) -> list[dict[str, str]]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": text}]
