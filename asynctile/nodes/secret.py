"""The secret that all nodes of a training know, and the proofs of knowing it. The secret itself is never sent.

A proof is an HMAC-SHA256 over everything that was said at a handshake, so it fits no other handshake. Proofs say who may join.
They neither hide nor sign what joined nodes send.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping

from asynctile.storage.input import read_file

#: The variable of the environment with the secret.
VARIABLE = "ASYNCTILE_SECRET"
#: The fewest and the most bytes of a secret. Shorter ones can be guessed from a proof.
FEWEST, MOST = 16, 4096
PROOF_NBYTES = NONCE_NBYTES = 32
#: How to make a secret, for messages.
_HOW = "python -c 'import secrets; print(secrets.token_hex())' makes one"


def find_secret(environment: Mapping[str, str], path: str | os.PathLike[str] | None = None) -> bytes:
    """Return the secret in the file `path`, or without a file, in the environment. Spaces around it do not count.

    ValueError if there is none, or if it is too short. OSError if the file cannot be read.
    """
    if path is not None:
        found, where = read_file(path, MOST).strip(), os.fspath(path)
    elif VARIABLE in environment:
        found, where = environment[VARIABLE].strip().encode(), VARIABLE
    else:
        raise ValueError(f"nodes need a secret that all of them know: set {VARIABLE} or name its file; {_HOW}")
    if len(found) < FEWEST:
        raise ValueError(f"the secret in {where} has {len(found)} bytes, expected at least {FEWEST}; {_HOW}")
    return found


def make_nonce() -> bytes:
    """Return fresh random bytes, which keep old proofs from being used again."""
    return os.urandom(NONCE_NBYTES)


def proof(secret: bytes, role: str, *said: bytes) -> bytes:
    """Return the proof of knowing `secret`. role: of the prover. said: by both sides so far, each with its length."""
    digest = hmac.new(secret, role.encode(), "sha256")
    for part in said:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def proves(given: bytes, secret: bytes, role: str, *said: bytes) -> bool:
    """Return whether `given` is the proof. Takes equally long for every wrong one."""
    return hmac.compare_digest(given, proof(secret, role, *said))
