"""A trial of a tokenizer.json in a process of its own, before this process lets the library read it.

Covers `refusal`. The library is written in Rust. On an invalid file that it does not expect, it panics: it prints a stack and
raises something that is not an Exception, or ends the process when memory runs out. So another process, limited in time and
memory, reads the file first and reports in one line how that went. If no process can be started, because Python is embedded in
another program or the system has no room, there is no trial: see tokenizer.py.
"""

from __future__ import annotations

import os
import subprocess
import sys

from asynctile.interpreter import interpreter

#: The trial: read the file from stdin, and with it encode letters, marks, other scripts and characters that are not letters.
_TRIAL = r"""
import resource, sys
sys.path[:] = sys.argv[1:]
content = sys.stdin.buffer.read()
limit = (256 << 20) + 64 * len(content)
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
if soft == resource.RLIM_INFINITY or limit < soft:
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
try:
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_buffer(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.to_str()
    text = "Ab c\n\t1.5!? ž 你 \U0001f600 \ufffd\0" + "".join(map(chr, range(256)))
    try:
        tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
    except Exception:
        pass  # a vocabulary that lacks some of that may do for another text
except BaseException as error:
    print(ascii(str(error))[1:-1][:200] or type(error).__name__)
else:
    print("sound")
"""
#: The time limit of a trial. A tokenizer of a million tokens takes some seconds.
PATIENCE_S = 120


def refusal(content: bytes) -> str | None:
    """Return the fault of a tokenizer.json's bytes in words; None if the library can use it, or if no trial was possible."""
    python = interpreter()
    if python is None:
        return None
    try:
        done = subprocess.run([python, "-I", "-S", "-c", _TRIAL, *sys.path], input=content, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, env=os.environ | {"RUST_BACKTRACE": "0"}, timeout=PATIENCE_S,
                              check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"the library needs more than {PATIENCE_S} s to read it"
    except OSError:
        return None
    answer = done.stdout.decode("ascii", "replace").strip()
    if answer == "sound" and done.returncode == 0:
        return None
    return answer if answer else f"the library ended with status {done.returncode} while reading it"
