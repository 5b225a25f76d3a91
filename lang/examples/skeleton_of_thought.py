"""Skeleton of thought: first the points, then every point at once."""

from __future__ import annotations

from radixrt.lang import ProgramState, assistant, function, gen, system, user


@function
def essay(s: ProgramState, topic: str, points: int) -> None:
    s += system("You write short, plain texts.") + user(f"Name {points} aspects of {topic}, one a line.")
    with s.assistant():
        for number in range(1, points + 1):
            s += f"{number}. " + gen("points", append=True, max_tokens=8, temperature=0, stop="\n") + "\n"
    forks = s.fork_map(s["points"])
    for fork, point in zip(forks, forks.items, strict=True):
        fork += user(f"One sentence about: {point}")
        fork += assistant(gen("sentence", max_tokens=12, temperature=0, stop="\n"))
    forks.join()
    s.set("essay", " ".join(s["sentence"]))


def main() -> ProgramState:
    state = essay.run(topic="tea", points=3)
    print(state["essay"])
    return state


if __name__ == "__main__":
    main()
