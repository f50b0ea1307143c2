"""The secret of the nodes: where it comes from, and proofs of knowing it."""

import pytest

from asynctile.nodes.secret import find_secret, make_nonce, proof, proves


def test_a_file_counts_more_than_the_environment(tmp_path):
    (tmp_path / "secret").write_text("  sixteen letters or more\n")
    there = {"ASYNCTILE_SECRET": "another one of enough letters"}
    assert find_secret(there, tmp_path / "secret") == b"sixteen letters or more"
    assert find_secret(there) == b"another one of enough letters"


def test_a_missing_or_short_secret_is_refused_with_the_way_to_make_one(tmp_path):
    with pytest.raises(ValueError, match=r"set ASYNCTILE_SECRET or name its file; python -c .* makes one"):
        find_secret({})
    with pytest.raises(ValueError, match=r"in ASYNCTILE_SECRET has 6 bytes, expected at least 16"):
        find_secret({"ASYNCTILE_SECRET": " short1\n"[:7]})
    with pytest.raises(OSError):
        find_secret({}, tmp_path / "nowhere")


def test_a_proof_fits_one_secret_one_role_and_one_conversation():
    nonce = make_nonce()
    given = proof(b"secret", "caller", nonce, b"hello")
    assert proves(given, b"secret", "caller", nonce, b"hello")
    assert not proves(given, b"Secret", "caller", nonce, b"hello")
    assert not proves(given, b"secret", "called", nonce, b"hello")
    assert not proves(given, b"secret", "caller", make_nonce(), b"hello")
    assert not proves(given, b"secret", "caller", nonce + b"h", b"ello"), "parts are told apart"
