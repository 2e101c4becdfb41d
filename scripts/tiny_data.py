"""The tasks that the built-in checkpoint is trained and measured on, made from a seed.

A sample is a conversation, the wanted answer and, for JSON, its schema. Names, companies, codes
and dates are drawn from two disjoint halves of all their combinations: a held-out sample is made
of combinations that no training sample can contain.
"""

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

Split = Literal["train", "heldout"]

FIRST = """Anna Ben Carla David Elena Felix Grace Hugo Irene Jonas Karin Liam Maria Noah Olga Paul
Quinn Rosa Simon Tina Uwe Vera Walt Xenia Yuri Zoe Aigul Bruno Chen Dina Emil Fatima Goran Hana Ivan
Julia Kofi Lena Marco Nadia Omar Petra Ravi Sara Tom Umar Vlad Wendy Yara Zack""".split()
LAST = """Miller Schmidt Garcia Rossi Novak Kim Tanaka Silva Kumar Olsen Dubois Ivanov Haddad Mensah
Wagner Costa Moreau Berg Khan Lopez Fischer Weber Santos Marin Popov Nagy Horvat Jensen Larsen
Murphy Walsh Byrne Clark Evans Hughes Cole Reed Stone Frost Lane""".split()
CITY = """Berlin Paris Tokyo Madrid Rome Vienna Prague Oslo Lisbon Dublin Athens Warsaw Zurich
Geneva Milan Munich Hamburg Lyon Porto Seoul Osaka Delhi Mumbai Cairo Lagos Accra Nairobi Lima Quito
Bogota Boston Denver Austin Dallas Miami Seattle Chicago Toronto Montreal Sydney""".split()
ADJECTIVE = """Aigner North Blue Delta Omega Prime Global Urban Green Solar Alpine Harbor Iron
Silver Crystal Summit River Pacific Atlas Nova""".split()
TRADE = """Transport Logistics Foods Systems Labs Textiles Motors Energy Media Robotics Pharma
Capital Design Travel Studios""".split()
PRODUCT = """laptop camera keyboard monitor printer tablet phone speaker router scanner chair desk
lamp bottle backpack jacket helmet bicycle tent guitar""".split()
ROLE = ["mage", "warrior", "healer", "archer"]
COLOR = ["red", "green", "blue", "black", "white"]
WEATHER = ["sunny", "rainy", "cloudy", "windy"]
MEETING = ["Conference", "Workshop", "Summit", "Fair", "Festival"]
SYLLABLE = (
    "ba co da fe gi ho ju ka lo mi na or pa qui re so tu va we xi ya zo ber lin mar ton".split()
)

FENCED = 0.25  # share of JSON answers inside a code fence: the habit that breaks JSON in practice
INDENTED = 0.3  # share of JSON answers spread over lines
THINKING = 0.12  # share of extractions that think first
INVENTED = 0.1  # share of samples whose words are mostly made up, so that copying spans pieces


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One conversation turn: what the user asks, and what should come back."""

    task: Literal["extract", "tool", "choice", "copy"]
    prompt: str
    answer: str  # as the model should write it, fences included, control tokens and stop excluded
    value: Any  # the answer's meaning: parsed JSON, (tool name, arguments), or the chosen word
    schema: dict[str, Any] | None = None
    thought: str | None = None  # None: thinking is off
    tools: list[dict[str, Any]] = field(default_factory=list)


class Draw:
    """Random values whose combinations all belong to one split."""

    def __init__(self, random: Random, split: Split):
        self.random, self._split = random, split
        self._invent = 0.5 if random.random() < INVENTED else 0.0

    def word(self, words: Sequence[str]) -> str:
        """One of `words`, or in some samples a made-up one in their style."""
        if self.random.random() >= self._invent:
            return self.random.choice(words)
        made = "".join(self.random.choices(SYLLABLE, k=self.random.randint(2, 3)))
        return made.capitalize() if words[0][0].isupper() else made

    def person(self) -> str:
        return self._ours(lambda: f"{self.word(FIRST)} {self.word(LAST)}")

    def company(self) -> str:
        return self._ours(lambda: f"{self.word(ADJECTIVE)} {self.word(TRADE)}")

    def meeting(self) -> str:
        return self._ours(lambda: f"{self.word(ADJECTIVE)} {self.random.choice(MEETING)}")

    def code(self) -> str:
        letters = "ABCDEFGHKLMNPRSTWXZ"
        return self._ours(
            lambda: (
                "".join(self.random.choices(letters, k=2)) + f"-{self.random.randint(100, 9999)}"
            )
        )

    def date(self) -> str:
        r = self.random
        return self._ours(
            lambda: f"{r.randint(2019, 2027)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"
        )

    def email(self) -> str:
        return self._ours(lambda: f"{self.word(FIRST).lower()}@{self.word(ADJECTIVE).lower()}.com")

    def money(self) -> float:
        amount = self._ours(
            lambda: f"{self.random.randint(5, 900) + self.random.choice([0, 0.5, 0.25, 0.99]):.2f}"
        )
        return float(amount)

    def _ours(self, make: Callable[[], str]) -> str:
        while True:
            value = make()
            if (zlib.crc32(value.encode()) % 10 == 0) == (self._split == "heldout"):
                return value


@dataclass(frozen=True)
class Field:
    """One thing a sentence can say: how to draw it, how prose puts it, what JSON type it has."""

    draw: Callable[[Draw], Any]
    prose: list[str] | dict[bool, list[str]]
    schema: dict[str, Any]

    def say(self, value: Any, random: Random) -> str:
        if isinstance(self.prose, dict):
            return random.choice(self.prose[value])
        if isinstance(value, dict):
            return random.choice(self.prose).format(**value)
        said = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        return random.choice(self.prose).format(said)


STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
BOOLEAN = {"type": "boolean"}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


FIELDS = {
    "invoice_id": Field(
        Draw.code, ["invoice {}", "bill number {}", "the document number is {}"], STRING
    ),
    "customer": Field(Draw.company, ["issued to {}", "billed to {}", "the customer is {}"], STRING),
    "total": Field(
        Draw.money, ["it amounts to {} euros", "the total is {}", "it costs {}"], NUMBER
    ),
    "paid": Field(
        lambda d: d.random.random() < 0.5,
        {True: ["it has been paid", "payment was received"], False: ["it is open", "not paid yet"]},
        BOOLEAN,
    ),
    "date": Field(Draw.date, ["on {}", "dated {}", "the date is {}"], STRING),
    "name": Field(Draw.person, ["the name is {}", "a person called {}", "this is {}"], STRING),
    "age": Field(lambda d: d.random.randint(18, 80), ["{} years old", "aged {}"], INTEGER),
    "city": Field(lambda d: d.word(CITY), ["living in {}", "based in {}", "from {}"], STRING),
    "role": Field(
        lambda d: d.random.choice(ROLE), ["working as a {}", "fights as a {}"], {"enum": ROLE}
    ),
    "email": Field(Draw.email, ["reachable at {}", "with mail {}"], STRING),
    "items": Field(
        lambda d: [d.word(PRODUCT) for _ in range(d.random.randint(1, 3))],
        ["ordered {}", "bought {}"],
        {"type": "array", "items": STRING},
    ),
    "quantity": Field(
        lambda d: d.random.randint(1, 40), ["{} pieces", "a quantity of {}"], INTEGER
    ),
    "address": Field(
        lambda d: {"city": d.word(CITY), "zip": f"{d.random.randint(10000, 99999)}"},
        ["at {zip} {city}", "with address {zip} {city}"],
        _object({"city": STRING, "zip": STRING}),
    ),
    "title": Field(Draw.meeting, ["the {}", "an event called {}"], STRING),
    "attendees": Field(
        lambda d: d.random.randint(5, 900), ["with {} guests", "{} people come"], INTEGER
    ),
    "online": Field(
        lambda d: d.random.random() < 0.5,
        {
            True: ["it is held online", "you join by video"],
            False: ["it is on site", "come in person"],
        },
        BOOLEAN,
    ),
    "product": Field(lambda d: d.word(PRODUCT), ["a {}", "the product is a {}"], STRING),
    "color": Field(lambda d: d.random.choice(COLOR), ["in {}", "its color is {}"], {"enum": COLOR}),
    "in_stock": Field(
        lambda d: d.random.random() < 0.5,
        {True: ["it is available", "ready to ship"], False: ["it is sold out", "none are left"]},
        BOOLEAN,
    ),
    "temperature": Field(
        lambda d: d.random.randint(-15, 38), ["{} degrees", "a temperature of {}"], INTEGER
    ),
    "weather": Field(
        lambda d: d.random.choice(WEATHER), ["it is {}", "a {} day"], {"enum": WEATHER}
    ),
}
DOMAINS = {
    "an invoice": ["invoice_id", "customer", "total", "paid", "date"],
    "a person": ["name", "age", "city", "role", "email"],
    "an order": ["name", "items", "quantity", "total", "date"],
    "an event": ["title", "city", "date", "attendees", "online"],
    "a product": ["product", "color", "total", "in_stock", "quantity"],
    "a contact": ["name", "address", "email", "age"],
    "the weather": ["city", "weather", "temperature", "date"],
}
ASK = ["Extract {f} as JSON. {t}", "Extract {f} as JSON: {t}", "Return {f} as JSON. {t}"]

TOOLS: dict[str, tuple[str, dict[str, tuple[Callable[[Draw], Any], str]]]] = {
    "get_weather": (
        "What is the weather in {city}?",
        {"city": (lambda d: d.word(CITY), "string")},
    ),
    "set_alarm": (
        "Wake me at {hour}:{minute}.",
        {
            "hour": (lambda d: d.random.randint(0, 23), "integer"),
            "minute": (lambda d: d.random.randint(10, 59), "integer"),
        },
    ),
    "send_email": (
        "Write to {to} about the {subject}.",
        {"to": (Draw.email, "string"), "subject": (Draw.meeting, "string")},
    ),
    "book_table": (
        "A table for {people} people on {date}, please, for {name}.",
        {
            "name": (Draw.person, "string"),
            "people": (lambda d: d.random.randint(1, 12), "integer"),
            "date": (Draw.date, "string"),
        },
    ),
    "convert": (
        "How much is {amount} in {currency}?",
        {
            "amount": (Draw.money, "number"),
            "currency": (lambda d: d.random.choice(["euros", "dollars", "yen"]), "string"),
        },
    ),
}


def sample(random: Random, split: Split, copying: float = 0.0) -> Sample:
    """A random sample of any task; a `copying` share of them plain copying."""
    if random.random() < copying:
        return copy(random, split)
    task = random.choices([extract, tool_call, choice], [0.76, 0.14, 0.1])[0]
    return task(random, split)


def extract(random: Random, split: Split) -> Sample:
    """Fields that the prompt names, from a sentence into JSON."""
    draw = Draw(random, split)
    domain, names = random.choice(list(DOMAINS.items()))
    values = {name: FIELDS[name].draw(draw) for name in names}
    told = random.sample(names, len(names)) if random.random() < 0.5 else names
    text = ", ".join(FIELDS[name].say(values[name], random) for name in told)
    asked = random.sample(names, random.randint(2, len(names)))
    value = {name: values[name] for name in asked}
    prompt = random.choice(ASK).format(f=", ".join(asked), t=text[0].upper() + text[1:] + ".")
    return Sample(
        task="extract",
        prompt=prompt,
        answer=_habits(value, random),
        value=value,
        schema=_object({name: FIELDS[name].schema for name in asked}),
        thought=f"The text is about {domain}." if random.random() < THINKING else None,
    )


def copy(random: Random, split: Split) -> Sample:
    """The curriculum's first lesson: the items of a list, as a JSON array."""
    draw = Draw(random, split)
    makers = [
        lambda: draw.word(FIRST),
        lambda: draw.word(LAST),
        lambda: draw.word(CITY),
        lambda: draw.word(PRODUCT),
        lambda: draw.word(ADJECTIVE),
        lambda: str(random.randint(1, 999)),
        draw.code,
        draw.date,
    ]
    items = [random.choice(makers)() for _ in range(random.randint(3, 8))]
    return Sample(
        task="copy",
        prompt=f"List as JSON. {', '.join(items)}",
        answer=json.dumps(items),
        value=items,
        schema={"type": "array", "items": STRING},
    )


def choice(random: Random, split: Split) -> Sample:
    """One word of a list that the prompt gives."""
    draw = Draw(random, split)
    name, options = random.choice([("role", ROLE), ("color", COLOR), ("weather", WEATHER)])
    word = random.choice(options)
    listed = random.sample(options, len(options))
    said = FIELDS[name].say(word, random)
    return Sample(
        task="choice",
        prompt=f"Answer with one word of {', '.join(listed)}. {draw.person()}, {said}.",
        answer=word,
        value=word,
        schema={"enum": options},
    )


def tool_call(random: Random, split: Split) -> Sample:
    """A call of one of the declared tools, in Gemma 4's native form."""
    draw = Draw(random, split)
    declared = random.sample(list(TOOLS), random.randint(1, 2))
    name = random.choice(declared)
    request, parameters = TOOLS[name]
    arguments = {key: make(draw) for key, (make, _) in parameters.items()}
    body = ",".join(f"{key}:{native(value)}" for key, value in arguments.items())
    return Sample(
        task="tool",
        prompt=request.format(**arguments),
        answer=f"<|tool_call>call:{name}{{{body}}}<tool_call|>",
        value=(name, arguments),
        tools=[_declaration(tool) for tool in declared],
    )


def native(value: Any) -> str:
    """A value as Gemma 4 writes it in a call: strings in control tokens, the rest as JSON."""
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def _declaration(name: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, (_, kind) in TOOLS[name][1].items()}
    return {"type": "function", "function": {"name": name, "parameters": _object(properties)}}


def _habits(value: Any, random: Random) -> str:
    body = json.dumps(value, indent=2 if random.random() < INDENTED else None)
    return f"```json\n{body}\n```" if random.random() < FENCED else body
