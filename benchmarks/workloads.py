"""The seven workloads. Prompts are made from a seed: a new seed is a cold cache, the same seed the same prompts."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from measure import Record, Server

_TEXT = (
    "the river and a small boat under old trees near our town where people work every day with light hands some "
    "stone walls stand by open fields while children read long books about distant lands cold winter water runs down "
    "green hills past quiet houses three birds wait above warm bread on wooden tables before night comes again slowly"
)
WORDS = _TEXT.split()
SHARED_WORDS, AGENT_WORDS = 1285, 915
"""Words of the long prompts; for the SmolLM2 tokenizer about 1,400 and 1,000 tokens."""
LABELS = ("delivery", "repair", "refund", "rental", "account", "other")
CITIES = ("Oslo", "Lima", "Porto", "Kyoto", "Quito", "Turin")
NAMES = ("Ada", "Bruno", "Chloe", "Dmitri", "Elif", "Farid", "Gesa", "Hana")
TRADES = ("baker", "potter", "welder", "nurse", "pilot", "tailor")
PERSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"enum": list(CITIES)},
        "trade": {"type": "string", "maxLength": 30},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 1, "maxItems": 3},
        "employed": {"type": "boolean"},
    },
    "required": ["name", "age", "city", "trade", "hobbies", "employed"],
    "additionalProperties": False,
}

Workload = Callable[[Server, random.Random], Awaitable[list[Record]]]


def prose(rng: random.Random, words: int) -> str:
    """`words` common words in sentences of 8 to 16."""
    sentences = []
    while words > 0:
        length = min(words, rng.randint(8, 16))
        sentences.append(" ".join(rng.choices(WORDS, k=length)).capitalize() + ".")
        words -= length
    return " ".join(sentences)


async def at_once(limit: int, jobs: Sequence[Coroutine[Any, Any, Record]]) -> list[Record]:
    """Run the jobs, at most `limit` at a time, started in order."""
    gate = asyncio.Semaphore(limit)

    async def gated(job: Coroutine[Any, Any, Record]) -> Record:
        async with gate:
            return await job

    return await asyncio.gather(*(gated(job) for job in jobs))


async def single(server: Server, rng: random.Random) -> list[Record]:
    """4 streams one after the other, 40-word prompts, 128 tokens each."""
    prompts = [prose(rng, 40) for _ in range(4)]
    return [await server.complete(prompt, max_tokens=128) for prompt in prompts]


async def batch(server: Server, rng: random.Random) -> list[Record]:
    """32 streams at once, unrelated 80-word prompts, 128 tokens each."""
    prompts = [prose(rng, 80) for _ in range(32)]
    return await at_once(32, [server.complete(prompt, max_tokens=128) for prompt in prompts])


async def shared(server: Server, rng: random.Random) -> list[Record]:
    """64 requests over one prompt of about 1,400 tokens, 16 at once, 32 tokens each."""
    prompt = prose(rng, SHARED_WORDS)
    questions = [
        f"\n\nQuestion {i}: what of the {rng.choice(WORDS)} and the {rng.choice(WORDS)}?\nAnswer:" for i in range(64)
    ]
    return await at_once(16, [server.complete(prompt + question, max_tokens=32) for question in questions])


async def agents(server: Server, rng: random.Random) -> list[Record]:
    """8 agents at once, 4 turns each over one prompt of about 1,000 tokens, 48 tokens a turn, histories grow."""
    system = prose(rng, AGENT_WORDS)
    questions = [[f"Agent {a}, turn {t}: " + prose(rng, 20) for t in range(4)] for a in range(8)]

    async def agent(turns: list[str]) -> list[Record]:
        messages, records = [{"role": "system", "content": system}], []
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            record = await server.chat(messages, max_tokens=48, fixed_length=True)
            records.append(record)
            if record.error:
                break
            messages.append({"role": "assistant", "content": record.text})
        return records

    return [record for records in await asyncio.gather(*map(agent, questions)) for record in records]


async def copying(server: Server, rng: random.Random) -> list[Record]:
    """16 chats, 4 at once, each asked to repeat a text of 70 words, at most 112 tokens."""
    texts = [prose(rng, 70) for _ in range(16)]
    system = {"role": "system", "content": "You repeat texts word for word."}
    asked = [[system, {"role": "user", "content": f"Repeat this text exactly:\n\n{text}"}] for text in texts]
    return await at_once(4, [server.chat(messages, max_tokens=112) for messages in asked])


async def json_records(server: Server, rng: random.Random) -> list[Record]:
    """24 requests under one JSON schema, 8 at once, at most 160 tokens; answers are checked against the schema."""
    response_format = {
        "type": "json_schema",
        "json_schema": {"name": "person", "strict": True, "schema": PERSON_SCHEMA},
    }

    async def extract(note: str) -> Record:
        record = await server.chat(ask_for_person(note), max_tokens=160, response_format=response_format)
        if record.error is None and not is_person(record.text):
            record.error = f"the answer does not validate: {record.text!r}"
        return record

    return await at_once(8, [extract(note) for note in notes(rng)])


def notes(rng: random.Random) -> list[str]:
    """24 sentences, each about a person."""
    return [
        f"Note {number}-{rng.randrange(10**6)}: {rng.choice(NAMES)}, {rng.randint(18, 80)}, works as a "
        f"{rng.choice(TRADES)} in {rng.choice(CITIES)}."
        for number in range(24)
    ]


def ask_for_person(note: str) -> list[dict[str, str]]:
    """The chat that asks for a note as JSON."""
    return [
        {"role": "system", "content": "Give the person in the note as JSON. Invent two hobbies."},
        {"role": "user", "content": note},
    ]


def is_person(text: str) -> bool:
    """Whether `text` is JSON that satisfies PERSON_SCHEMA."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    if not isinstance(value, dict) or set(value) != set(PERSON_SCHEMA["required"]):
        return False

    def short(item: object) -> bool:
        return isinstance(item, str) and len(item) <= 30

    hobbies = value["hobbies"]
    return (
        short(value["name"])
        and isinstance(value["age"], int)
        and not isinstance(value["age"], bool)
        and 0 <= value["age"] <= 120
        and value["city"] in CITIES
        and short(value["trade"])
        and isinstance(hobbies, list)
        and 1 <= len(hobbies) <= 3
        and all(map(short, hobbies))
        and isinstance(value["employed"], bool)
    )


async def choice(server: Server, rng: random.Random) -> list[Record]:
    """96 tickets, each classified under a choice constraint of six labels, 16 at once, at most 8 tokens."""
    system = "Classify the ticket. Labels: " + ", ".join(LABELS) + ". Answer with one label."
    dialect = await choice_dialect(server)

    tickets = [f"Ticket {number}-{rng.randrange(10**6)}: {prose(rng, 25)}" for number in range(96)]

    async def classify(ticket: str) -> Record:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": ticket}]
        record = await server.chat(messages, max_tokens=8, **dialect(LABELS))
        if record.error is None and record.text.strip('"') not in LABELS:
            record.error = f"not one of the labels: {record.text!r}"
        return record

    return await at_once(16, [classify(ticket) for ticket in tickets])


Dialect = Callable[[Sequence[str]], dict[str, Any]]


def as_structured_outputs(options: Sequence[str]) -> dict[str, Any]:
    """A choice as radixrt and vLLM take it."""
    return {"structured_outputs": {"choice": list(options)}}


def as_enum(options: Sequence[str]) -> dict[str, Any]:
    """A choice for servers that know JSON schemas alone; the answer stands in quotes."""
    schema = {"name": "label", "strict": True, "schema": {"enum": list(options)}}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


async def choice_dialect(server: Server) -> Dialect:
    """How this server is asked for a choice; found by asking for words that no model writes by itself."""
    words = ("zqx-17", "zqx-18")
    question = [{"role": "user", "content": "Say something."}]
    for dialect in (as_structured_outputs, as_enum):
        record = await server.chat(question, max_tokens=16, **dialect(words))
        if record.error is None and record.text.strip('"') in words:
            return dialect
    raise SystemExit(f"{server.url} holds to a choice in no way that this benchmark knows")


WORKLOADS: dict[str, Workload] = {
    "single": single,
    "batch": batch,
    "shared": shared,
    "agents": agents,
    "copy": copying,
    "json": json_records,
    "choice": choice,
}
