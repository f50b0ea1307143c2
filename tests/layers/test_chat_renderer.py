"""Templates in a process of their own: what they render, where answers are, and the limits that hold them."""

from __future__ import annotations

import importlib.metadata
import resource
from collections.abc import Iterator
from datetime import datetime

import psutil
import pytest

from asynctile.layers import chat_renderer
from asynctile.layers.chat_renderer import Renderer
from tests.layers.chats import SHORT, chat, template

CHAT = chat("Who?", "I.", "And \u017e?", "You\U0001f600")


def renderer(source: str, **names: str) -> Renderer:
    return Renderer(source, names, "m")


def parts(source: str, messages: list[dict[str, object]], **names: str) -> list[str]:
    """Return the answers that a template's renderer finds, as text."""
    with renderer(source, **names) as opened:
        text, spans = opened.answers(messages)
    return [text[begin:end] for begin, end in spans]


def test_answers_are_what_the_template_marks_or_else_what_it_adds() -> None:
    for is_marked, end in ((True, ""), (False, "\n")):
        source = template("ChatML", is_marked=is_marked)
        assert parts(source, CHAT) == [f"I.<|im_end|>{end}", f"You\U0001f600<|im_end|>{end}"]
        source = template("Llama 3", is_marked=is_marked)
        assert parts(source, CHAT, bos_token="<b>") == ["I.<|eot_id|>", "You\U0001f600<|eot_id|>"]
        source = template("Mistral", is_marked=is_marked)
        assert parts(source, CHAT, bos_token="<s>", eos_token="</s>") == [" I.</s>", " You\U0001f600</s>"]


def test_the_whole_text_and_the_prompt_are_those_of_the_template() -> None:
    with renderer(template("Llama 3", is_marked=True), bos_token="<b>") as opened:
        text, _ = opened.answers(CHAT[:2])
        assert text == opened.text(CHAT[:2]) == (
            "<b><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
            "I.<|eot_id|>")  # fmt: skip
        assert opened.prompt(CHAT[:2]) == text + "<|start_header_id|>assistant<|end_header_id|>\n\n"


def test_templates_have_what_transformers_gives_them() -> None:
    source = ("{% for m in messages %}\n    {% if loop.index0 == 1 %}{% break %}{% endif %}\n{{ m | tojson }}\n{% endfor %}\n"
              "{{ tools | tojson(indent=1) }}{{ strftime_now('%Y') }}{{ documents }}")  # fmt: skip
    messages = [{"role": "user", "content": "<\u017e>", "name": None}, {"role": "assistant", "content": "I."}]
    with renderer("{% generation %}" + source + "{% endgeneration %}") as opened:
        text, spans = opened.answers(messages, [{"a": 1}])
    assert text == f'{{"role": "user", "content": "<\u017e>"}}\n[\n {{\n  "a": 1\n }}\n]{datetime.now().year}None'
    assert spans == [(0, len(text))]


def test_one_process_renders_many_chats_and_goes_on_after_a_refusal() -> None:
    source = template("Mistral", is_marked=True)
    with renderer(source, bos_token="", eos_token="") as opened:
        (process,) = psutil.Process().children()
        for number in range(20):
            assert opened.text(chat(f"{number}")) == f"[INST] {number} [/INST]"
        with pytest.raises(ValueError, match=r"^the chat template of m: roles must alternate, and the user begins; correct"):
            opened.text(chat("a", "b")[1:])
        assert opened.text(chat("a")) == "[INST] a [/INST]"
        assert psutil.Process().children() == [process]
    assert not process.is_running()


MANY = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
ENDS = "{% endfor %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(("source", "sentence"), [
    (f"{MANY}{ENDS}", "takes more than 0.2 s of processor time"),
    ("{{ 10 ** (10 ** 9) }}", "takes more than 0.2 s of processor time|needs more"),
    ("{{ 'a' * 10 ** 10 }}", r"needs more than 512\.00 MiB"),
    ("{{ messages[0].role * 3000000 }}", "the text has more than 8,388,608 characters"),
    ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
    ("{{ cycler.__init__.__globals__.os.system('true') }}", "access to attribute '__init__' .*is unsafe"),
    ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
    ("{% import 'os' as os %}", "no loader for this environment specified"),
    ("{% include '/etc/passwd' %}", "no loader for this environment specified"),
    ("{{ messages[7].role }}", "list object has no element 7"),
    ("{{ 1 / 0 }}", "division by zero"),
    ("{{ raise_exception('not\n\x1b[31m so') }}", r"not \\x1b\[31m so"),
])  # fmt: skip
@pytest.mark.timeout(60)
def test_a_template_that_does_what_it_must_not_ends_in_one_line(
    source: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_renderer, "PATIENCE_S", 0.2)
    with pytest.raises(ValueError, match=f"^the chat template of m:? ({sentence})") as caught, renderer(source) as opened:
        opened.text(CHAT)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_string_that_grows_ends_at_the_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_renderer, "MEMORY_NBYTES", 128 << 20)
    source = "{% set all = namespace(text='a') %}{% for n in range(40) %}{% set all.text = all.text ~ all.text %}{% endfor %}"
    with pytest.raises(ValueError, match=r"m needs more than 128\.00 MiB|m ends its process"), renderer(source) as opened:
        opened.text(CHAT)


@pytest.mark.parametrize(("source", "sentence"), [
    ("{% for %}", r"m: Expected an expression, got 'end of statement block' \(line 1\)"),
    ("a\n{% endif %}", r"m: .* \(line 2\)"), ("{{ 'a' | nonsense }}", "m: No filter named 'nonsense'"),
])  # fmt: skip
def test_source_that_is_not_a_template_is_refused_at_once(source: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        renderer(source)


def test_the_process_may_open_nothing_and_ends_with_the_renderer() -> None:
    with renderer(SHORT) as opened:
        (process,) = psutil.Process().children()
        for what, most in ((resource.RLIMIT_NOFILE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_AS, 512 << 20)):
            assert resource.prlimit(process.pid, what) == (most, most)
        opened.close()
        assert not process.is_running()


def test_answers_that_cannot_be_found_are_refused() -> None:
    """Templates that write the last message otherwise, as some drop what a model thought before: any, or an answer alone."""
    for last in ("loop.last", "loop.last and m.role == 'assistant'"):
        with renderer(f"{{% for m in messages %}}{{{{ m.content }}}}{{{{ '!' if {last} }}}}{{% endfor %}}") as opened:
            with pytest.raises(ValueError, match=r"up to message 2 is no beginning of the whole text.* mark answers"):
                opened.answers(CHAT)
            assert opened.text(CHAT).endswith("!")
    inside = "{% macro say(m) %}<{% generation %}{{ m.content }}{% endgeneration %}>{% endmacro %}{{ say(messages[1]) }}"
    with renderer(inside) as opened, pytest.raises(ValueError, match=r"its \{% generation %\} is inside a macro"):
        opened.answers(CHAT)


@pytest.fixture
def found_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    versions: list[str] = []

    def version(name: str) -> str:
        if not versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[0]

    monkeypatch.setattr(chat_renderer, "version", version)
    return versions


def test_a_missing_or_old_jinja_is_named_with_what_to_install(found_version: list[str]) -> None:
    with pytest.raises(ValueError, match=r"needs the package jinja2; pip install 'asynctile\[chat\]'"):
        renderer(SHORT)
    found_version.append("3.1.5")
    with pytest.raises(ValueError, match=r"jinja2 is 3\.1\.5, and its sandbox has known holes below 3\.1\.6; pip install"):
        renderer(SHORT)
    found_version[0] = "3.2.0.dev1"
    renderer(SHORT).close()


def test_without_an_interpreter_a_template_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_renderer, "interpreter", lambda: None)
    with pytest.raises(ValueError, match="this program embeds Python without an interpreter"):
        renderer(SHORT)
    monkeypatch.setattr(chat_renderer, "interpreter", lambda: "/no/such/python")
    with pytest.raises(ValueError, match="none can be started"):
        renderer(SHORT)
