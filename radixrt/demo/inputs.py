"""The texts that the demo runs on, shipped beside this file. All of them are made up."""

from __future__ import annotations

from importlib.resources import files

import msgspec


class Agent(msgspec.Struct, frozen=True):
    """One customer conversation: who answers, and what is asked, turn by turn."""

    agent: str
    turns: list[str]


class Ticket(msgspec.Struct, frozen=True):
    """A ticket and the label that a person gave it."""

    text: str
    label: str


def policy() -> str:
    """The rules that all agents answer by, about 1,150 tokens."""
    return _read("policy.md")


def agents() -> list[Agent]:
    return msgspec.json.decode(_read("agents.json"), type=list[Agent])


def notes() -> list[str]:
    """The paragraphs from which records are taken."""
    return msgspec.json.decode(_read("intake.json"), type=list[str])


def tickets() -> list[Ticket]:
    return msgspec.json.decode(_read("tickets.json"), type=list[Ticket])


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
