"""ReAct: the model calls a Python function, sees what it gives, and goes on until it answers."""

from __future__ import annotations

from typing import Literal

from radixrt.lang import ProgramState, assistant, function, gen, system, tool, user

PRICES = {"tea": 3, "cake": 5, "soup": 7}


def price(item: Literal["tea", "cake", "soup"]) -> str:
    """What something on the menu costs."""
    return f"{PRICES[item]} crowns"


@function
def order(s: ProgramState, question: str, steps: int) -> None:
    s += system("You are a waiter. You look up prices, and then answer in one short sentence.") + user(question)
    for step in range(steps):
        choice = "auto" if step else "required"
        s += assistant(gen("step", tools=[price], tool_choice=choice, max_tokens=40, temperature=0))
        calls = s["step"].tool_calls
        if not calls:
            break
        s.set("calls", [(call.name, call.arguments) for call in calls])
        for call in calls:
            s += tool(str(call()), tool_call_id=call.id, name=call.name)


def main() -> ProgramState:
    state = order.run(question="What does cake cost?", steps=2)
    print(state["calls"], "->", state["step"].text.strip())
    return state


if __name__ == "__main__":
    main()
