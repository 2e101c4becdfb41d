"""instructor: values of types by calls of a tool, of chats and of responses."""

import json

import openai
import pytest
from pydantic import BaseModel, field_validator
from turn_scripts import call, script

instructor = pytest.importorskip("instructor", reason="instructor is not installed")

WANTED = {"name": "Olga", "age": 61}


class Person(BaseModel):
    name: str
    age: int


class Adult(BaseModel):
    name: str
    age: int

    @field_validator("age")
    @classmethod
    def of_age(cls, age: int) -> int:
        if age < 18:
            raise ValueError("an adult is 18 or older")
        return age


@pytest.fixture(params=["TOOLS", "RESPONSES_TOOLS", "JSON_SCHEMA"])
def mode(request):
    return instructor.Mode[request.param]


@pytest.fixture
def client(url, mode):
    made = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    return instructor.from_openai(made, mode=mode)


def steps(mode, name, *values):
    """Return the turns of a model that answers with these values."""
    text = mode == instructor.Mode.JSON_SCHEMA
    return [json.dumps(value) if text else [call(name, **value)] for value in values]


def ask(prompt):
    return {"model": "dlm", "messages": [{"role": "user", "content": prompt}]}


def test_a_value_has_its_type(client, mode):
    prompt = script(*steps(mode, "Person", WANTED))
    person = client.chat.completions.create(**ask(prompt), response_model=Person)
    assert isinstance(person, Person)
    assert person.model_dump() == WANTED


def test_a_value_that_a_validator_refuses_is_requested_again(client, mode):
    if mode == instructor.Mode.RESPONSES_TOOLS:
        pytest.skip("instructor sends no turn of the model again, so that a script has no place")
    prompt = script(*steps(mode, "Adult", {"name": "Olga", "age": 6}, WANTED))
    adult = client.chat.completions.create(**ask(prompt), response_model=Adult, max_retries=2)
    assert adult.model_dump() == WANTED


def test_a_value_streams(client, mode):
    if mode == instructor.Mode.RESPONSES_TOOLS:
        pytest.skip("instructor reads no streams of responses into partial values")
    prompt = script(*steps(mode, "PartialPerson", WANTED))
    parts = list(client.chat.completions.create_partial(**ask(prompt), response_model=Person))
    assert parts[-1].model_dump() == WANTED
