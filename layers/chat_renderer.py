"""Chats as text, rendered by a model's chat template in a process of its own.

Covers `Renderer` and `check_jinja`. A template is a program that somebody else wrote. Jinja's sandbox keeps it from Python's
inside, but not from a loop without end or a string without measure, and sandboxes have had holes. So another process renders:
it is limited in processor time and memory, opens no file and no connection, and answers in text alone. One process renders as
many chats as come. chat_format.py finds the template, chats.py reads chats.

Rendering follows transformers (`_cached_compile_jinja_template` and `_render_with_assistant_indices` of its module
utils.chat_template_utils): the sandbox, its settings, `raise_exception`, `strftime_now`, `tojson` without escapes, and
`{% generation %}` around answers.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn, Self

from asynctile.interpreter import interpreter
from asynctile.layers.chat_format import ANSWERING
from asynctile.storage.sizes import format_size

__all__ = ["Message", "Renderer", "Span", "check_jinja"]

#: A message of a chat: role, content, and what else a template reads.
Message = Mapping[str, Any]
#: The characters of an answer: the first one, and the one behind the last.
Span = tuple[int, int]

#: The processor time of one chat, in seconds. Rendering takes well below a millisecond.
PATIENCE_S = 10.0
#: The address space of the process. Python and Jinja take 50 MiB of it.
MEMORY_NBYTES = 512 << 20
#: The most characters of a rendered chat.
MOST_CHARACTERS = 1 << 23
#: The most characters of a template's complaint in a message.
_SHOWN = 300
#: Names under which data sets keep what a model thought. Templates read the first or the second.
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
#: Older versions have known ways out of the sandbox.
LEAST_JINJA = (3, 1, 6)
_INSTALL = "pip install 'asynctile[chat]'"

#: The other process. It reads a line of JSON for each chat from stdin, and writes one to stdout. The first has the template.
_PROCESS = r"""
import json, resource, signal, sys
patience_s, memory, most, answering = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
sys.path[:] = sys.argv[5:]
import pprint, textwrap  # for filters
from datetime import datetime
import jinja2, jinja2.debug, jinja2.ext, jinja2.sandbox

def limit(what, least):
    soft, hard = resource.getrlimit(what)
    if soft == resource.RLIM_INFINITY or least < soft:
        resource.setrlimit(what, (least, least))

is_marked, place, spans = False, 0, []

class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        global is_marked
        is_marked = True
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller):
        text = caller()
        spans.append((place, text))
        return text

def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)

def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

def strftime_now(format):
    return datetime.now().strftime(format)

def rendered(chat, messages, is_prompt):
    global place
    place, blocks = 0, []
    spans.clear()
    for block in template.generate(messages=messages, tools=chat.get("tools"), documents=None,
                                   add_generation_prompt=is_prompt, **names):
        blocks.append(block)
        place += len(block)
        if place > most:
            raise ValueError(f"the text has more than {most:,} characters")
    return "".join(blocks)

def answers_of(chat):
    messages = chat["messages"]
    text = rendered(chat, messages, False)
    if is_marked:
        for begin, answer in spans:
            if text[begin : begin + len(answer)] != answer:
                raise ValueError("its {% generation %} is inside a macro, a block or a filter, where its place is unknown")
        return text, [(begin, begin + len(answer)) for begin, answer in spans]
    found = []
    for index, message in enumerate(messages):
        if message["role"] == answering:
            before = rendered(chat, messages[:index], True)
            until = text if index + 1 == len(messages) else rendered(chat, messages[: index + 1], False)
            if not (until.startswith(before) and text.startswith(until)):
                raise ValueError(f"the text up to message {index + 1} is no beginning of the whole text, so its answer cannot "
                                 "be found; mark answers in the template by {% generation %}")
            found.append((len(before), len(until)))
    return text, found

def reply(chat):
    if chat["wanted"] == "answers":
        text, found = answers_of(chat)
        return {"text": text, "spans": found}
    return {"text": rendered(chat, chat["messages"], chat["wanted"] == "prompt")}

def begin(given):
    global template, names
    names, template = given["names"], environment.from_string(given["template"])
    return {}

environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
environment.filters["tojson"] = tojson
environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
# Loads codecs and the time zone, while files can be read.
environment.from_string("{{ '\\n' }}{{ strftime_now('%c') }}").render()
limit(resource.RLIMIT_AS, memory)
for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
    limit(what, 0)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a terminal sends them to all; this process ends with its pipe
    signal.signal(number, signal.SIG_IGN)
signal.signal(signal.SIGPROF, signal.SIG_DFL)
work = begin
for line in sys.stdin.buffer:
    signal.setitimer(signal.ITIMER_PROF, patience_s)  # its signal ends the process
    try:
        answer = json.dumps(work(json.loads(line)))
    except MemoryError:
        answer = '{"fault": null}'
    except Exception as error:
        where = f" (line {error.lineno})" if getattr(error, "lineno", None) else ""
        answer = json.dumps({"fault": f"{error}{where}"[:400] or type(error).__name__})
    signal.setitimer(signal.ITIMER_PROF, 0)
    sys.stdout.write(answer + "\n")
    sys.stdout.flush()
    work = reply
"""


def check_jinja() -> None:
    """Raise ValueError, which says what to install, unless Jinja is here in a version whose sandbox holds."""
    least = ".".join(map(str, LEAST_JINJA))
    try:
        found = version("jinja2")
    except PackageNotFoundError:
        raise ValueError(f"a chat template needs the package jinja2; {_INSTALL}") from None
    if tuple(int(part) for part in found.split(".")[:3] if part.isdigit()) < LEAST_JINJA:
        raise ValueError(f"jinja2 is {found}, and its sandbox has known holes below {least}; {_INSTALL}")


class Renderer:
    """A process that renders chats by one template. Use it as a context manager; every call blocks, from one thread at a time.

    template: Jinja source. names: the special tokens that it may name. place: where it is from, for messages.

    ValueError, in one sentence, if jinja2 is missing, no process can be started, or the template is not valid. After a
    ValueError of a limit, the process is gone.
    """

    def __init__(self, template: str, names: Mapping[str, str], place: str) -> None:
        check_jinja()
        python = interpreter()
        if python is None:
            raise ValueError("a chat template is rendered in a process of its own, and this program embeds Python without an "
                             "interpreter to start one; render the chats in another program")
        self.place = place
        words = [str(word) for word in (PATIENCE_S, MEMORY_NBYTES, MOST_CHARACTERS, ANSWERING)]
        try:
            self._process = subprocess.Popen([python, "-I", "-S", "-c", _PROCESS, *words, *sys.path], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
        except OSError as error:
            raise ValueError(f"a chat template is rendered in a process of its own, and none can be started "
                             f"({error.strerror}); free some memory, or raise ulimit -u") from error
        try:
            self._ask({"template": template, "names": dict(names)})
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process. Calls after the first do nothing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                pass  # what was left to be written has no reader

    def answers(self, messages: Sequence[Message], tools: object = None) -> tuple[str, list[Span]]:
        """Return the text of a chat, and the characters of each answer in it, in order.

        Answers are what the template puts into `{% generation %}`. A template without it is rendered up to each message of the
        role `assistant`, with the generation prompt, and up to its end; the answer is the difference. ValueError if the one
        text is no beginning of the other, and for all that goes wrong in the template.
        """
        found = self._ask(_chat(messages, tools, "answers"))
        return found["text"], [(begin, end) for begin, end in found["spans"]]

    def prompt(self, messages: Sequence[Message]) -> str:
        """Return the text after which the model answers. ValueError for all that goes wrong in the template."""
        return str(self._ask(_chat(messages, None, "prompt"))["text"])

    def text(self, messages: Sequence[Message]) -> str:
        """Return the text of a chat. ValueError for all that goes wrong in the template."""
        return str(self._ask(_chat(messages, None, "text"))["text"])

    def _ask(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdin.closed:
            raise ValueError(f"the process of the chat template of {self.place} was closed; open another one")
        try:
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
        except OSError:  # no reader any more
            self._refuse(self._end())
        line = process.stdout.readline()
        if not line.endswith(b"\n"):
            self._refuse(self._end())
        found: dict[str, Any] = json.loads(line)
        if "fault" in found:
            fault = found["fault"]
            self._refuse(f" needs more than {format_size(MEMORY_NBYTES)}" if fault is None
                         else f": {ascii(' '.join(fault.split()))[1:-1][:_SHOWN]}")
        return found

    def _end(self) -> str:
        """Return how the process ended, as the rest of a sentence."""
        status = self._process.wait()
        if status == -signal.SIGPROF:
            return f" takes more than {PATIENCE_S:g} s of processor time"
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f" ends its process with {how}, as it does when memory runs out"

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(f"the chat template of {self.place}{what}; correct it, or name another with --chat-template")


def _chat(messages: Sequence[Message], tools: object, wanted: str) -> dict[str, Any]:
    """Return what the process needs for a chat."""
    return {"messages": [*map(_given, messages)], "tools": tools, "wanted": wanted}


def _given(message: Message) -> Message:
    """Return a message as transformers gives it to a template.

    An entry that is None counts as missing. What a model thought before it answered has all its names.
    """
    whole = {name: value for name, value in message.items() if value is not None}
    thought = next((whole[name] for name in _THOUGHTS if name in whole), None)
    return whole if thought is None else {"thinking": thought, **whole, "reasoning_content": thought}
