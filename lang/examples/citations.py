"""Retrieval with citations: what is cited is chosen among the passages by select, so no source is made up."""

from __future__ import annotations

from collections.abc import Mapping

from radixrt.lang import ProgramState, assistant, function, gen, select, system, user

PASSAGES = {
    "[1]": "The mill was built in 1874 by two brothers.",
    "[2]": "It burned down in 1901 and was rebuilt in brick.",
    "[3]": "Today it houses a bakery and a small museum.",
}


@function
def answer(s: ProgramState, question: str, passages: Mapping[str, str]) -> None:
    listed = "\n".join(f"{mark} {text}" for mark, text in passages.items())
    s += system("Answer from the passages, and cite one.") + user(f"{listed}\n\n{question}")
    s += assistant(
        gen("answer", max_tokens=20, temperature=0, stop=["\n", "["]) + " " + select("source", list(passages))
    )


def main() -> ProgramState:
    state = answer.run(question="When did the mill burn down?", passages=PASSAGES)
    print(state["answer"], state["source"], "-", PASSAGES[state["source"]])
    return state


if __name__ == "__main__":
    main()
