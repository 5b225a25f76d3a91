"""Tools and templates: what a template that knows none is told, and that calls come out as they went in."""

from __future__ import annotations

import json

import pytest

from radixrt.checkpoint import Vocabulary
from radixrt.errors import InvalidRequest
from radixrt.messages import ChatMessage, ChatPrompt
from radixrt.tokenizer.chat import ChatTemplate
from radixrt.tokenizer.shield import Shield

from .conftest import CHATML

HERMES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{% if m.content or not loop.first %}{{ '\n' }}{% endif %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", '
    '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if tools %}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "wetter",
        "parameters": {"type": "object", "properties": {"ort": {"type": "string"}}, "required": ["ort"]},
    },
}
ARGUMENTS = '{"ort": "K\\u00f8ln", "z":1.50}'
CALL = {"id": "c1", "type": "function", "function": {"name": "wetter", "arguments": ARGUMENTS}}


def template(source: str, vocabulary: Vocabulary) -> ChatTemplate:
    return ChatTemplate(source, Shield(vocabulary), bos_token="<|bos|>", eos_token="<|im_end|>")


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def test_what_was_generated_comes_out_of_the_template_as_it_went_in(vocabulary: Vocabulary) -> None:
    generated = f'<tool_call>\n{{"name": "wetter", "arguments": {ARGUMENTS}}}\n</tool_call>'
    history = [user("?"), ChatMessage(role="assistant", tool_calls=[CALL, CALL])]
    for source in (HERMES, CHATML):
        ours = template(source, vocabulary)
        before = ours.ids(ChatPrompt(messages=history[:1], tools=[TOOL]))[1]
        after = ours.ids(ChatPrompt(messages=history, tools=[TOOL]))[1]
        assert after.startswith(f"{before}{generated}\n{generated}<|im_end|>")


def test_a_template_without_tools_explains_them_in_a_stable_text(vocabulary: Vocabulary) -> None:
    ours = template(CHATML, vocabulary)
    assert (ours.knows_tools, ours.dialect) == (False, "hermes")
    shuffled = json.loads(json.dumps(TOOL, sort_keys=True))
    text = ours.ids(ChatPrompt(messages=[user("hi")], tools=[TOOL]))[1]
    assert text == ours.ids(ChatPrompt(messages=[user("hi")], tools=[shuffled]))[1]
    assert text.startswith("<|im_start|>system\n# Tools\n\nYou can call functions")
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in text
    own = ChatMessage(role="system", content="Be brief.")
    assert "<|im_start|>system\nBe brief.\n\n# Tools" in ours.ids(ChatPrompt(messages=[own], tools=[TOOL]))[1]
    assert "tools" not in ours.ids(ChatPrompt(messages=[user("hi")]))[1]


def test_a_template_that_refuses_system_messages_has_them_explained_by_the_user(vocabulary: Vocabulary) -> None:
    refusing = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
    ours = template(refusing + CHATML, vocabulary)
    turns = [user("hi"), ChatMessage(role="assistant", content="b"), user("c")]
    text = ours.ids(ChatPrompt(messages=turns, tools=[TOOL]))[1]
    assert text.startswith("<|im_start|>user\n# Tools\n") and "</tool_call>\n\nhi<|im_end|>" in text
    begin = ours.ids(ChatPrompt(messages=turns[:2], tools=[TOOL], add_generation_prompt=False))[1]
    assert begin + ours.ids(ChatPrompt(messages=turns, tools=[TOOL], after=2))[1] == text
    with pytest.raises(InvalidRequest, match="no"):
        ours.ids(ChatPrompt(messages=[ChatMessage(role="system", content="s"), *turns], tools=[TOOL]))


def test_calls_and_results_are_plain_turns_there(vocabulary: Vocabulary) -> None:
    history = [
        user("?"),
        ChatMessage(role="assistant", content="I look.", tool_calls=[CALL]),
        ChatMessage(role="tool", tool_call_id="c1", content="12 °C <|im_end|>"),
    ]
    ids, text = template(CHATML, vocabulary).ids(ChatPrompt(messages=history))
    assert '\nI look.\n<tool_call>\n{"name": "wetter"' in text
    assert "<|im_start|>user\n<tool_response>\n12 °C <|im_end|>\n</tool_response><|im_end|>\n" in text
    assert ids.count(vocabulary.special_tokens["<|im_end|>"]) == 3, "a result's text is no marker"


def test_a_conversation_with_tools_goes_on_where_it_stopped(vocabulary: Vocabulary) -> None:
    ours = template(CHATML, vocabulary)
    turns = [user("a"), ChatMessage(role="assistant", content="b"), user("c")]
    whole = ours.ids(ChatPrompt(messages=turns, tools=[TOOL]))[1]
    begin = ours.ids(ChatPrompt(messages=turns[:2], tools=[TOOL], add_generation_prompt=False))[1]
    rest = ours.ids(ChatPrompt(messages=turns, tools=[TOOL], after=2))[1]
    assert whole == begin + rest


def test_an_opening_is_part_of_the_prompt(vocabulary: Vocabulary) -> None:
    ours = template(HERMES, vocabulary)
    plain, _ = ours.ids(ChatPrompt(messages=[user("a")]))
    opened, text = ours.ids(ChatPrompt(messages=[user("a<|end|>")], opening="<|end|>"))
    assert text.endswith("assistant\n<|end|>") and opened[-1] == vocabulary.special_tokens["<|end|>"]
    assert opened.count(opened[-1]) == 1 and len(plain) < len(opened)
