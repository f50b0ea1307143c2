"""A reader of any damaged file reads it or says in one short sentence what is wrong, naming the file.

The readers are in damage.py. The damage is that of scenario `inputs` of `asynctile stress`, which goes on with it for as long
as you like. `python tests/fuzz_readers.py` is guided by coverage. Their findings are kept here.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from asynctile.cli.stress.inputs import document
from tests.damage import cases, check, damaged, holding
from tests.laws import examples

#: Cases that each cost an engine or a process are tried less often here.
EXAMPLES = {"checkpoint": 20, "tokenizer": 16, "tokenizer of GPT-2": 20}


@pytest.fixture(scope="module", params=["model", "shards", "adapter", "checkpoint", "checksums", "run", "tokens", "examples",
                                        "tokenizer", "tokenizer of GPT-2", "documents", "options"])  # fmt: skip
def name(request):
    return request.param


def test_a_whole_file_is_read(name):
    assert check(cases()[name], lambda folder: None) is None


@pytest.mark.hypothesis  # whose own mark does not see a function inside
def test_a_damaged_file_is_read_or_refused_in_a_sentence(name, monkeypatch):
    monkeypatch.setattr(document, "MANY", 4_000)  # the scenario spends the time and memory of 400,000
    case = cases()[name]
    said = []

    @examples(EXAMPLES.get(name, 60), suppress_health_check=list(HealthCheck), database=None)
    @given(st.randoms(use_true_random=True), st.sampled_from(sorted(case.files)))
    def try_one(random: Random, file: str) -> None:
        said.append(check(case, damaged(random, file)))

    try_one()
    assert any(said)


TRAINER = (
    b'{"format": 1, "step_count": 0, "skipped_count": 0, "optimizer": {}, "clip_norm": null, "micro_batches": 1, '
    b'"recompute": true, "tile": %d, "data_state": {}, "surroundings": {}}'
)
#: Found earlier: (case, file, its content).
KEPT = [
    ("checkpoint", "trainer.json", TRAINER % (2**63 - 1)),
    ("shards", "model.safetensors.index.json", b'{"weight_map": {"a": "' + b"x" * 3000 + b'"}}'),
    ("adapter", "adapter_config.json", b'{"peft_type": "LORA", "' + b"x" * 3000 + b'": "a"}'),
    ("run", "metrics.jsonl", b'{"step": 1, "loss": "' + b"x" * 100_000 + b'"}\n'),
]


@pytest.mark.parametrize(("kept", "file", "content"), KEPT)
def test_earlier_findings_stay_fixed(kept, file, content):
    assert check(cases()[kept], holding(file, content)) is not None
