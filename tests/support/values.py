"""Constants that tests and their fixtures share."""

PROMPT = [2, 200, 201, 202]  # any tokens: a double does not read them
V = 1536  # tokens of the built-in model
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
