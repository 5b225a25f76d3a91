"""Tree of thought: some first steps, each rated by the model, and only the best is taken further."""

from __future__ import annotations

from radixrt.lang import ProgramState, assistant, function, gen, select, system, user

GRADES = ["poor", "fair", "good"]


@function
def think(s: ProgramState, problem: str, width: int, depth: int) -> None:
    s += system("You solve problems step by step.") + user(problem)
    path: list[str] = []
    for level in range(depth):
        forks = s.fork(width)
        for i, fork in enumerate(forks):
            said = "\n".join(path)
            fork += user(f"So far:\n{said}\nStep {level + 1}, in one sentence:" if path else "The first step:")
            fork += assistant(gen("step", max_tokens=12, seed=10 * level + i, stop="\n"))
            fork += user("How good is this step?") + assistant(select("grade", GRADES))
        forks.join()
        ranks = [GRADES.index(fork["grade"]) for fork in forks]
        path.append(forks[ranks.index(max(ranks))]["step"].strip())
    s.set("path", path)


def main() -> ProgramState:
    state = think.run(problem="Three boxes weigh 12 kg. Two weigh 9 kg. What does the third weigh?", width=2, depth=2)
    print("\n".join(state["path"]))
    return state


if __name__ == "__main__":
    main()
