"""A conversation over several turns, printed as it grows."""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.lang import ProgramState, assistant, function, gen, system, user

TURNS = ["Name a river in France.", "And one in Spain."]


@function
def talk(s: ProgramState, turns: Sequence[str]) -> None:
    s += system("You are a terse geographer.")
    for i, turn in enumerate(turns):
        s += user(turn) + assistant(gen(f"answer{i}", max_tokens=16, temperature=0))


def main() -> ProgramState:
    state = talk.stream(turns=TURNS)
    for i, turn in enumerate(TURNS):
        print(f"> {turn}")
        for piece in state.text_iter(f"answer{i}"):
            print(piece, end="", flush=True)
        print()
    return state


if __name__ == "__main__":
    main()
