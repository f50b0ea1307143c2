"""The handshake of a connection between two nodes: both prove that they know the secret, and the called one accepts or refuses.

    caller                                   called
    MAGIC, nonce                     ->
                                     <-      MAGIC, nonce
    hello, proof over all of this    ->
                                     <-      answer, proof over all of this

An answer without a good proof comes from somebody who does not know the secret. A refusal says why in its answer.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from asynctile.errors import NodeError
from asynctile.nodes.secret import NONCE_NBYTES, PROOF_NBYTES, make_nonce, proof, proves
from asynctile.nodes.wire import Deadline, at, encode, read, read_document, reason
from asynctile.storage.input import shown

MAGIC = b"asynctile nodes\n"
CALLER, CALLED = "caller", "called"
#: A called node waits this long for a handshake, in seconds.
PATIENCE_S = 5.0
_NO_PROOF = bytes(PROOF_NBYTES)
_SECRETS = "the secrets differ; give all nodes the same secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a caller says about itself.

    node, nodes: its number, and how many nodes it expects. terms: everything on which nodes must agree, by name. session: of
    the meeting, given out by node 0; empty for a node that joins. channel: 0 for the control connection of a pair. port: where
    it listens. gave_up: why it does not take part; empty for a node that does.
    """

    node: int
    nodes: int
    terms: Mapping[str, str]
    session: str = ""
    channel: int = 0
    port: int = 0
    gave_up: str = ""

    @classmethod
    def of(cls, document: Any) -> Self:
        """Return the hello that a document holds. NodeError for any other document."""
        try:
            found = cls(**document)
        except TypeError:
            found = None
        if found is None or not found.is_sound():
            raise NodeError(f"a node introduced itself as {shown(document)}, which this version does not understand")
        return found

    def is_sound(self) -> bool:
        """Return whether all values have their types."""
        counts = (self.node, self.nodes, self.channel, self.port)
        named = isinstance(self.terms, dict) and all(isinstance(value, str) for value in self.terms.values())
        texts = isinstance(self.session, str) and isinstance(self.gave_up, str)
        return named and texts and all(type(count) is int and count >= 0 for count in counts)


def call(connection: socket.socket, hello: Hello, secret: bytes, deadline: Deadline) -> dict[str, Any]:
    """Introduce this node over a new connection; return the answer. NodeError, which names the other side, if it refuses."""
    where = at(connection.getpeername())
    try:
        nonce = make_nonce()
        connection.sendall(MAGIC + nonce)
        other = _greeting(connection, deadline)
        said = encode(asdict(hello))
        connection.sendall(said + proof(secret, CALLER, nonce, other, said))
        answer, answered = read_document(connection, deadline)
        given = read(connection, PROOF_NBYTES, deadline)
    except OSError as error:
        raise NodeError(f"node {hello.node} could not join at {where}: {reason(error)}") from error
    if not proves(given, secret, CALLED, nonce, other, said, answered):
        raise NodeError(f"node {hello.node} could not join at {where}: {_SECRETS}")
    if not isinstance(answer, dict) or "refused" in answer:
        why = answer["refused"] if isinstance(answer, dict) else shown(answer)
        raise NodeError(f"node {hello.node} was refused at {where}: {why}")
    return answer


def answer_call(connection: socket.socket, secret: bytes, welcome: Callable[[Hello], dict[str, Any]]) -> Hello:
    """Let a caller introduce itself over a new connection; return its hello once it has been accepted.

    welcome: returns the answer, or raises NodeError to refuse. NodeError, with the words of the refusal, for every caller that
    is refused or says something else.
    """
    deadline = Deadline(PATIENCE_S)
    try:
        nonce, other = make_nonce(), _greeting(connection, deadline)
        connection.sendall(MAGIC + nonce)
        document, said = read_document(connection, deadline)
        given = read(connection, PROOF_NBYTES, deadline)
        if not proves(given, secret, CALLER, other, nonce, said):
            # Without a proof of our own, from which a stranger could try secrets.
            connection.sendall(encode({}) + _NO_PROOF)
            raise NodeError(_SECRETS)
        try:
            hello = Hello.of(document)
            answer = welcome(hello)
        except NodeError as refusal:
            answered = encode({"refused": str(refusal)})
            connection.sendall(answered + proof(secret, CALLED, other, nonce, said, answered))
            raise
        answered = encode(answer)
        connection.sendall(answered + proof(secret, CALLED, other, nonce, said, answered))
    except OSError as error:
        raise NodeError(reason(error)) from error
    return hello


def _greeting(connection: socket.socket, deadline: Deadline) -> bytes:
    """Return the other side's nonce. ConnectionError if something else than a node is there."""
    deadline.apply(connection)
    found = bytearray()
    while len(found) < len(MAGIC) and MAGIC.startswith(found):  # a stranger may say less and wait
        found += read(connection, 1, deadline)
    if found != MAGIC:
        raise ConnectionError("something that is not asynctile is there")
    return read(connection, NONCE_NBYTES, deadline)
