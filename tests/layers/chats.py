"""Chat templates in three styles, with and without {% generation %}, and chats by chance to render with them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from tests.layers.llama_files import byte_level, sentencepiece

#: A template of each style, with « and » around what the model writes.
_STYLES = {
    "ChatML": "{% for message in messages %}<|im_start|>{{ message.role + '\\n' }}{% if message.role == 'assistant' %}«{{ "
              "message.content }}<|im_end|>»{% else %}{{ message.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "Llama 3": "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' }}"
               "{% if m['role'] == 'assistant' %}«{{ m['content'] | trim }}<|eot_id|>»{% else %}{{ m['content'] | trim }}"
               "<|eot_id|>{% endif %}{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    "Mistral": "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
               "{{ raise_exception('roles must alternate, and the user begins') }}{% endif %}{% if m.role == 'user' %}"
               "[INST] {{ m.content }} [/INST]{% else %}« {{ m.content }}{{ eos_token }}»{% endif %}{% endfor %}",
}  # fmt: skip
#: Tokens that begin and end a text of a style, and its other special tokens.
_TOKENS: dict[str, tuple[str | None, str, tuple[str, ...]]] = {
    "ChatML": (None, "<|im_end|>", ("<|im_start|>",)),
    "Llama 3": ("<|begin_of_text|>", "<|eot_id|>", ("<|start_header_id|>", "<|end_header_id|>")),
    "Mistral": ("<s>", "</s>", ()),
}
STYLES = tuple(_STYLES)
#: A template for models of bytes: few letters around the contents.
SHORT = "{% for m in messages %}{{ m.role[0] + ':' + m.content + '\\n' }}{% endfor %}{{ 'a:' if add_generation_prompt }}"
_WORDS = (
    "tile", " the device", "\n\n", "  ", "\u017elu\u0165", "\U0001f600", "1234", "'s", " [INST] ", "<|im_end|>", "</s>",
    "\u4f60",
)  # fmt: skip


def template(style: str, *, is_marked: bool) -> str:
    """Return the template of a style, with {% generation %} around answers or without it."""
    begin, end = ("{% generation %}", "{% endgeneration %}") if is_marked else ("", "")
    return _STYLES[style].replace("«", begin).replace("»", end)


def write_tokenizer(folder: Path, style: str, chat_template: str) -> Path:
    """Write the tokenizer of a model of a style into a new folder, and return it. The tokenizers have at most 340 tokens."""
    begin, end, others = _TOKENS[style]
    folder.mkdir()
    content = sentencepiece() if style == "Mistral" else byte_level(begin, end, *others)
    (folder / "tokenizer.json").write_bytes(content)
    names = {"bos_token": begin, "eos_token": {"__type": "AddedToken", "content": end, "lstrip": False}} if begin else {
        "eos_token": end}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "chat_template": chat_template,
        **names,
    }))  # fmt: skip
    return folder


def chat(*contents: str) -> list[dict[str, Any]]:
    """Return the messages of a chat that the user begins."""
    return [{"role": ("user", "assistant")[number % 2], "content": content} for number, content in enumerate(contents)]


def chats_by_chance(count: int, seed: int) -> list[list[dict[str, Any]]]:
    """Return chats of one to four answers. The last one may have no answer behind its last question."""
    random = Random(seed)

    def content() -> str:
        return "".join(random.choices(_WORDS, k=random.randint(0, 7)))

    return [chat(*(content() for _ in range(2 * random.randint(1, 4) + (random.random() < 0.2)))) for _ in range(count)]


def write_lines(path: Path, objects: Iterable[object]) -> Path:
    """Write a line of JSON for each object, and return the path."""
    path.write_text("".join(json.dumps(item) + "\n" for item in objects))
    return path
