"""The demo's three programs, written with radixrt.lang as one would write one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field

from radixrt.lang import ProgramState, assistant, function, gen, select, system, user

LABELS = ("delivery", "repair", "refund", "rental")


class Intake(BaseModel):
    """What the workshop writes down about an instrument that came in; also the schema that the answers are held to."""

    owner: str = Field(max_length=40)
    instrument: Literal["violin", "viola", "cello", "double bass", "guitar", "mandolin"]
    maker: str = Field(max_length=40)
    built: int = Field(ge=1700, le=2030)
    fault: str = Field(max_length=80)
    estimate_euros: int = Field(ge=0, le=9999)
    insured: bool


# A small model follows examples better than instructions. They stand before what differs from run to run, so they are
# computed once, like the policy.
ANSWERS = (
    ("How much is express delivery?", "Express delivery costs 14 euros and arrives the next working day (rule 3)."),
    ("Can I return opened rosin?", "I am sorry, opened rosin cannot be returned (rule 8)."),
)
RECORDS = (
    (
        "Handed in by Rosa Engel: a guitar from the hands of Pieter Blom, 1965. The neck is bent. We said 210 euros. "
        "Nothing is insured.",
        Intake(
            owner="Rosa Engel",
            instrument="guitar",
            maker="Pieter Blom",
            built=1965,
            fault="the neck is bent",
            estimate_euros=210,
            insured=False,
        ),
    ),
    (
        "Dr. Paul Amsel sent a viola by the Ivanka workshop, made in 1940. The scroll is chipped; 75 euros. The "
        "opera's insurance pays.",
        Intake(
            owner="Dr. Paul Amsel",
            instrument="viola",
            maker="Ivanka workshop",
            built=1940,
            fault="the scroll is chipped",
            estimate_euros=75,
            insured=True,
        ),
    ),
)
TOPICS = (
    ("Where is my package? It was due yesterday.", "delivery"),
    ("The bridge of my violin is broken. Can you mend it?", "repair"),
    ("Please give me my money back for the strings.", "refund"),
    ("What do you charge per month to hire a cello?", "rental"),
)


@function
def desk(s: ProgramState, policy: str, turns: Sequence[str]) -> None:
    """One agent: the policy, then a few questions. Agents share the policy's tokens, turns share all before them."""
    s += system(policy)
    for question, answer in ANSWERS:
        s += user(question) + assistant(answer)
    for number, turn in enumerate(turns):
        s += user(turn)
        s += assistant(gen(f"answer{number}", max_tokens=40, temperature=0, frequency_penalty=0.4))


@function
def intake(s: ProgramState, note: str) -> None:
    """One note becomes one record: the text is held to the schema token by token, so it always parses."""
    s += system("You read notes of an instrument workshop and write each one down as a JSON record.")
    for example, record in RECORDS:
        s += user(example) + assistant(record.model_dump_json())
    s += user(note)
    s += assistant(gen("record", type=Intake, max_tokens=160, temperature=0))


@function
def triage(s: ProgramState, ticket: str) -> None:
    """One ticket gets one label: no text is generated, the labels are scored and the likeliest is taken."""
    s += "Tickets of an instrument workshop and their topics.\n"
    for text, label in TOPICS:
        s += f"\nTicket: {text}\nTopic: {label}\n"
    s += f"\nTicket: {ticket}\nTopic: " + select("label", LABELS)
