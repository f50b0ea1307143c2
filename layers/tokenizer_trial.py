"""Trying a tokenizer.json in a process of its own, before this one lets the library read it.

Covers `refusal`. The library is written in Rust: over a file that is wrong in a way it does not expect it panics, which
prints a stack and raises what is no Exception, or ends the process where memory runs out. So another process, limited in
time and memory, reads the file first and says in a line how that went. Where none can be started, inside a program that
embeds Python or where the system has no room for one, whoever reads the file is the first to try: see tokenizer.py.
"""

from __future__ import annotations

import os
import subprocess
import sys

from asynctile.interpreter import interpreter

#: Reads the file from its input, and text with it that has letters, marks, other scripts and what is no letter at all.
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
#: A tokenizer of a million tokens takes some seconds.
_PATIENCE_S = 120


def refusal(content: bytes) -> str | None:
    """What is wrong with the bytes of a tokenizer.json, in words; None if the library can use it, or nobody could try."""
    python = interpreter()
    if python is None:
        return None
    try:
        done = subprocess.run([python, "-I", "-S", "-c", _TRIAL, *sys.path], input=content, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, env=os.environ | {"RUST_BACKTRACE": "0"}, timeout=_PATIENCE_S,
                              check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"the library reads it for more than {_PATIENCE_S} s"
    except OSError:
        return None
    answer = done.stdout.decode("ascii", "replace").strip()
    if answer == "sound" and done.returncode == 0:
        return None
    return answer if answer else f"the library ended with status {done.returncode} over it"
