"""Few-shot classification: all texts share the examples, which are computed once for the whole batch."""

from __future__ import annotations

from radixrt.lang import ProgramState, function, select

SHOTS = [("It hangs when I save.", "bug"), ("A dark theme would be nice.", "wish"), ("It lost my file.", "bug")]
LABELS = [" bug", " wish"]
TEXTS = ["It crashes at start.", "Could it speak Welsh?", "The sum is wrong."]


@function
def classify(s: ProgramState, text: str) -> None:
    s += "".join(f"Text: {shot}\nLabel: {label}\n\n" for shot, label in SHOTS)
    s += f"Text: {text}\nLabel:" + select("label", LABELS)


def main() -> list[ProgramState]:
    states = classify.run_batch([{"text": text} for text in TEXTS])
    for text, state in zip(TEXTS, states, strict=True):
        print(f"{state['label'].strip()}: {text}")
    return states


if __name__ == "__main__":
    main()
