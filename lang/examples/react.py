"""ReAct: the model acts, a Python function answers, until the model says that it is done."""

from __future__ import annotations

from radixrt.lang import ProgramState, function, gen, select

PRICES = {"tea": 3, "cake": 5, "soup": 7}


def price(item: str) -> str:
    """The tool."""
    return f"{PRICES[item]} crowns" if item in PRICES else "there is no such thing"


@function
def order(s: ProgramState, question: str, steps: int) -> None:
    s += (
        "Question: What does soup cost?\nAction: price\nItem: soup\nObservation: 7 crowns\nAction: answer\n"
        f"Answer: 7 crowns\n\nQuestion: {question}\n"
    )
    for step in range(steps):
        s += "Action:" + select("action", [" price", " answer"] if step else [" price"], append=True)
        if s["action"][-1] == " answer":
            break
        s += "\nItem: " + gen("item", choices=list(PRICES), temperature=0)
        s += f"\nObservation: {price(s['item'])}\n"
    else:
        s += "Action: answer"
    s += "\nAnswer:" + gen("answer", max_tokens=8, temperature=0, stop="\n")


def main() -> ProgramState:
    state = order.run(question="What does cake cost?", steps=3)
    print(state["item"], "->", state["answer"].strip())
    return state


if __name__ == "__main__":
    main()
