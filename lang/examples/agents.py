"""Agents over one prompt: the shared briefing is computed once, and each agent answers in its own branch."""

from __future__ import annotations

from radixrt.lang import ProgramState, assistant, function, gen, system, user

BRIEFING = "The harbour of Lund plans a new pier. It costs 4 million and may disturb the seals. The vote is in May."
ROLES = {"an engineer": "Name one risk.", "a biologist": "Name one worry.", "a treasurer": "Name one question."}


@function
def council(s: ProgramState, briefing: str, roles: dict[str, str]) -> None:
    s += system(f"You advise a council. {briefing}")
    forks = s.fork_map(roles.items())
    for fork, (role, task) in zip(forks, roles.items(), strict=True):
        fork += user(f"You are {role}. {task}")
        fork += assistant(gen("advice", max_tokens=16, temperature=0, stop="\n"))
    forks.join()


def main() -> ProgramState:
    state = council.run(briefing=BRIEFING, roles=ROLES)
    for role, advice in zip(ROLES, state["advice"], strict=True):
        print(f"{role}: {advice}")
    return state


if __name__ == "__main__":
    main()
