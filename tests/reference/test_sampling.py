"""Allowed tokens and their probabilities against the logits processors of transformers' `generate` for the same settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.generation import logits_process as theirs  # noqa: E402

from asynctile.layers.sampling import Sampler, Sampling, weighted  # noqa: E402

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("default")]

SIZE = 300


def their_probabilities(logits: np.ndarray, seen: np.ndarray, given: Sampling) -> np.ndarray:
    """Return transformers' probabilities, in float64 after the penalty: at a border float32 would decide by its last bit."""
    ids, scores = torch.from_numpy(seen[None]), torch.from_numpy(logits[None].copy())
    if given.repetition_penalty is not None:
        scores = theirs.RepetitionPenaltyLogitsProcessor(given.repetition_penalty)(ids, scores)
    scores = theirs.TemperatureLogitsWarper(given.temperature)(ids, scores.double())
    if given.top_k is not None:
        scores = theirs.TopKLogitsWarper(given.top_k)(ids, scores)
    if given.top_p is not None:
        scores = theirs.TopPLogitsWarper(given.top_p)(ids, scores)
    if given.min_p is not None:
        scores = theirs.MinPLogitsWarper(given.min_p)(ids, scores)
    found: np.ndarray = scores.softmax(-1)[0].numpy()
    return found


def our_probabilities(logits: np.ndarray, seen: np.ndarray, given: Sampling) -> np.ndarray:
    ids, weights = weighted(logits, seen, given)
    found = np.zeros(logits.size)
    found[ids] = weights / weights.sum()
    return found


def settings_of(random: Any) -> dict[str, Any]:
    drawn = {
        "top_k": int(random.integers(1, 2 * SIZE)), "top_p": float(random.uniform(0.01, 1)),
        "min_p": float(random.uniform(0, 1) ** 3), "repetition_penalty": float(random.uniform(0.5, 2)),
    }  # fmt: skip
    chosen = {name: value for name, value in drawn.items() if random.random() < 0.6}
    return {"top_k": None, "temperature": float(random.uniform(0.2, 3)), **chosen}


@pytest.mark.parametrize("ties", [False, True])
def test_probabilities_are_those_of_transformers(ties: bool) -> None:
    random = np.random.default_rng(7)
    for _ in range(400):
        logits = (random.normal(size=SIZE) * random.uniform(0.1, 6)).astype(np.float32)
        if ties:
            logits = np.round(logits)
        seen = random.integers(0, SIZE, random.integers(0, 100))
        given = Sampling(**settings_of(random))
        found, expected = our_probabilities(logits, seen, given), their_probabilities(logits, seen, given)
        if ties:  # transformers does not define which of equal logits go
            found, expected = np.sort(found), np.sort(expected)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-300, err_msg=str(given))


def test_the_likeliest_after_the_penalty_is_that_of_transformers() -> None:
    random = np.random.default_rng(8)
    for _ in range(100):
        logits = random.normal(size=SIZE).astype(np.float32)
        seen = random.integers(0, SIZE, 100)
        ids, scores = torch.from_numpy(seen[None]), torch.from_numpy(logits[None].copy())
        scores = theirs.RepetitionPenaltyLogitsProcessor(1.3)(ids, scores)
        assert Sampler(Sampling(temperature=0, repetition_penalty=1.3)).choose(logits, seen) == int(scores.argmax())


def test_generate_of_transformers_uses_the_same_order() -> None:
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=4, n_positions=8, vocab_size=5)
    model = transformers.GPT2LMHeadModel(config)
    given = transformers.GenerationConfig(
        do_sample=True, temperature=0.7, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=1.2, max_length=8)  # fmt: skip
    found = model._get_logits_processor(given, input_ids_seq_length=1)  # generate itself does not tell them
    assert [type(one) for one in found] == [
        theirs.RepetitionPenaltyLogitsProcessor, theirs.TemperatureLogitsWarper, theirs.TopKLogitsWarper,
        theirs.TopPLogitsWarper, theirs.MinPLogitsWarper]  # fmt: skip
