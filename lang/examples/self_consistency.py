"""Self-consistency: several samples of one prompt, which is computed once, and the answer that most of them give."""

from __future__ import annotations

from collections import Counter

from radixrt.lang import ProgramState, assistant, function, gen, user


@function
def vote(s: ProgramState, question: str, samples: int) -> None:
    s += user(f"{question} Answer with a number.")
    s += assistant(gen("answers", type=int, n=samples, seed=1, temperature=0.8, max_tokens=24))
    s.set("answer", Counter(s["answers"]).most_common(1)[0][0])


def main() -> ProgramState:
    state = vote.run(question="How many legs have two dogs and a bird together?", samples=5)
    print(state["answer"], "of", state["answers"])
    return state


if __name__ == "__main__":
    main()
