"""Regular expressions: the gate, and what is left against Python's own `re`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest

from radixrt.errors import ConstraintError
from radixrt.grammar import Grammar
from radixrt.grammar.backends import Backends
from radixrt.params import Constraint

Accepts = Callable[[Grammar, str], bool]


def compiled(compiler: Backends, pattern: str) -> Grammar:
    return compiler.compile(Constraint(kind="regex", value=pattern))


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("[unclosed", "not closed"),
        ("(ab", "not closed"),
        ("ab)", "without its ("),
        ("a\\", "backslash at the end"),
        ("a(?=b)", "look-ahead"),
        ("(?<!a)b", "look-ahead"),
        ("(a)\\1", "back-references"),
        ("(?P<x>a)(?P=x)", "kind of group"),
        ("(?>ab)", "kind of group"),
        ("\\bfoo\\b", "word boundaries"),
        ("a++b", "quantifier on a quantifier"),
        ("a{2}{3}", "quantifier on a quantifier"),
        ("[a&&b]", "twice in a class"),
        ("[a--b]", "twice in a class"),
        ("[[:alpha:]]", "must be written"),
        ("[a[b]]", "must be written"),
        ("[]a]", "empty class"),
        ("(?x)a b", "inline flags"),
        ("\\Gab", "not supported"),
        ("\\x4", "hexadecimal"),
        ("a{1,20000}", "limit"),
        ("(" * 70 + "a" + ")" * 70, "limit"),
        ("a^b", "only at the beginning"),
        ("[^\\s\\S]", "nothing satisfies"),
        ("*a", "nothing before it"),
    ],
)
def test_what_is_not_enforced_is_refused_with_its_place(pattern: str, words: str, compiler: Backends) -> None:
    with pytest.raises(ConstraintError) as caught:
        compiled(compiler, pattern)
    assert caught.value.param == "regex"
    assert words in caught.value.message


@pytest.mark.parametrize(
    "pattern",
    [
        "abc", "^abc$", "a|b$", "^a|b", "(^a|b)c", "a($|x)", "(a|ab)(c|bc)", "a*?b", "a??b", "(?:a|b){2,3}", "[^a]b",
        "[a-c]+", "(?i)aB", "(?s)a.b", "a.b", "a?b?c?", "(?P<n>a)b", "[\\x61b]c", "\\.a", "[.*]a", "a{0}b", "ab|abc|",
        "[ab\\-]c", "\\[a\\]", "a/b", "(a|b)*c", "yes|yes please",
    ],
)  # fmt: skip
def test_regexes_match_whole_as_python_does(pattern: str, compiler: Backends, accepts: Accepts) -> None:
    grammar = compiled(compiler, pattern)
    texts = ["".join(t) for n in range(5) for t in itertools.product("abc.", repeat=n)]
    texts += ["aB", "Ab", "AB", "a\nb", "^abc$", "x", "ax", "-c", "[a]", "a/b", "yes", "yes please", "yes ", "aéb"]
    want = {text for text in texts if re.fullmatch(pattern, text)}
    assert {text for text in texts if accepts(grammar, text)} == want
    assert want


@pytest.mark.parametrize("choice", ["a.b*c", "(x|y)[z]{2}^$", "a b#c&d~e-f", "\\d\n\t\"'/", "\x00\x7f é 😀", " lead"])
def test_a_choice_is_taken_literally(choice: str, compiler: Backends, accepts: Accepts) -> None:
    grammar = compiler.compile(Constraint(kind="choice", choices=(choice, "other")))
    assert accepts(grammar, choice) and accepts(grammar, "other")
    assert not any(accepts(grammar, text) for text in (choice[:-1], choice + "x", choice.strip() + " ", "", "othe"))
