"""Extraction into a pydantic model: the text can only be JSON of its schema, and is read as the model."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from radixrt.lang import ProgramError, ProgramState, assistant, function, gen, system, user


class Visit(BaseModel):
    city: str = Field(max_length=20)
    nights: int = Field(ge=1, le=30)
    by: Literal["train", "bus", "ship"]


@function
def extract(s: ProgramState, letter: str) -> None:
    s += system("You fill in forms.") + user(f"{letter}\nFill in city, nights and by.")
    s += assistant(gen("visit", type=Visit, temperature=0, max_tokens=60))


def main() -> ProgramState:
    state = extract.run(letter="We stay two nights in Turin, and we come by train.")
    try:
        print(state.get("visit", Visit))
    except ProgramError as error:  # a small model may fill the city with noise until max_tokens cuts it
        print(error.reason)
    return state


if __name__ == "__main__":
    main()
