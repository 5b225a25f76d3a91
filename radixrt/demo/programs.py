"""The demo's three programs, written with radixrt.lang as one would write one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field

from radixrt.lang import ProgramState, assistant, function, gen, select, system, user

LABELS = ("delivery", "repair", "refund", "rental")
EXAMPLES = (
    ("Where is my package? It was due yesterday.", "delivery"),
    ("The bridge of my violin is broken. Can you mend it?", "repair"),
    ("Please give me my money back for the strings.", "refund"),
    ("What do you charge per month to hire a cello?", "rental"),
)


class Intake(BaseModel):
    """What the workshop writes down about an instrument that came in; also the schema that the answers are held to."""

    owner: str = Field(max_length=40)
    instrument: Literal["violin", "viola", "cello", "double bass", "guitar", "mandolin"]
    maker: str = Field(max_length=40)
    built: int = Field(ge=1700, le=2030)
    fault: str = Field(max_length=80)
    estimate_euros: int = Field(ge=0, le=9999)
    insured: bool


@function
def desk(s: ProgramState, policy: str, turns: Sequence[str]) -> None:
    """One agent: the policy, then a few questions. Agents share the policy's tokens, turns share all before them."""
    s += system(policy)
    for number, turn in enumerate(turns):
        s += user(turn)
        s += assistant(gen(f"answer{number}", max_tokens=40, temperature=0))


@function
def intake(s: ProgramState, note: str) -> None:
    """One note becomes one record: the text is held to the schema token by token, so it always parses."""
    s += system("You read notes of an instrument workshop and write each one down as a JSON record.")
    s += user(note)
    s += assistant(gen("record", type=Intake, max_tokens=160, temperature=0))


@function
def triage(s: ProgramState, ticket: str) -> None:
    """One ticket gets one label: no text is generated, the labels are scored and the likeliest is taken."""
    s += system("Sort the tickets of an instrument workshop. Labels: " + ", ".join(LABELS) + ".")
    for text, label in EXAMPLES:
        s += user(text)
        s += assistant(label)
    s += user(ticket)
    s += assistant(select("label", LABELS))
