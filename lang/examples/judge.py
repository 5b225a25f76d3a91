"""A judge: each branch grades one dimension of the same text, and plain Python adds up."""

from __future__ import annotations

from radixrt.lang import ProgramState, assistant, function, select, system, user

DIMENSIONS = ["clarity", "courtesy", "brevity"]
GRADES = ["1", "2", "3", "4", "5"]


@function
def grade(s: ProgramState, text: str) -> None:
    s += system("You grade letters from 1 (bad) to 5 (very good).") + user(f"The letter:\n{text}")
    forks = s.fork_map(DIMENSIONS, lambda fork, name: user(f"Grade its {name}.") + assistant(select("grade", GRADES)))
    forks.join()
    grades = [int(grade) for grade in s["grade"]]
    s.set("verdict", "send it" if sum(grades) >= 3 * len(grades) else "write it again")


def main() -> ProgramState:
    state = grade.run(text="Dear neighbour, your tree is lovely, but it is on my roof. Could we talk on Sunday?")
    print(dict(zip(DIMENSIONS, state["grade"], strict=True)), state["verdict"])
    return state


if __name__ == "__main__":
    main()
