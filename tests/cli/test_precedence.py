"""The content of run.json that a resumed run accepts: no output path, and only values that could have been typed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile import Engine
from asynctile.cli import planning as plans
from asynctile.cli.options import CHECKS, FORGOTTEN, Options
from asynctile.cli.precedence import new_options, resumed_options
from asynctile.schedule.rates import CORES, Rates
from tests.cli.conftest import Program

RUN = Path("runs/one")


def remembered(**changes: Any) -> dict[str, Any]:
    return Options(data="/a/text", host_memory=1 << 20).to_json() | changes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("micro_batches", 0), ("save_every", 0), ("keep", -1), ("keep", 0), ("steps", "many"), ("steps", 2.0), ("steps", True),
        ("steps", None), ("batch_size", 10**30), ("batch_size", []), ("seed", -1), ("seed", 10**90), ("seed", 1.5),
        ("schedule", "step"), ("schedule", None), ("min_lr", -1.0), ("beta1", 1.0), ("beta2", "0.9"), ("eps", 0),
        ("gradient_accumulation", 0), ("epochs", 0.0), ("decay_steps", 0),
        ("replicas", 3), ("replicas", 0), ("replicas", True), ("replicas", "2x"),
        ("lr", float("nan")), ("lr", float("inf")), ("lr", "0.1"), ("lr", 0), ("lr", False), ("clip_norm", -1.0),
        ("weight_decay", -0.1), ("warmup", -1), ("host_memory", "lots"), ("host_memory", 0), ("host_memory", 1.5),
        ("device", ["cpu"]), ("device", ""), ("device", None), ("recompute", "no"), ("recompute", 1), ("recompute", "auto"),
        ("data", "a\0b"), ("data", 7), ("model", {}), ("spill", ""), ("spill_limit", -1), ("prefetch", -1), ("tile", 0),
        ("data", "x" * 1000 + "\0"),
    ],
)  # fmt: skip
def test_a_value_that_could_not_be_typed_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"runs/one/run.json was damaged or edited: {name}: ") as caught:
        resumed_options({}, remembered(**{name: value}), RUN)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("name", "value"), [
    ("device", "tpu"), ("precision", "half"), ("update", "gpu"), ("micro_batches", 5), ("replicas", 8),
])  # fmt: skip
def test_values_that_do_not_fit_are_refused_as_typed_ones_are(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} {value}"):
        resumed_options({}, remembered(**{name: value}), RUN)


def test_the_options_that_a_run_remembers_are_read_back_unchanged() -> None:
    options = Options(data="/a/text", model="gpt2", tokenizer="bpe:300", device="emulated", device_memory=1 << 20,
                      host_memory=7, spill="/a/disk", spill_limit=4096, link_rate=10**9, prefetch=0, update="host", tile=64,
                      recompute=False, steps=3, batch_size=4, micro_batches=2, replicas=2, seq_len=8, lr=0.1 + 0.2, warmup=0,
                      weight_decay=0.0, clip_norm=1e22, seed=2**64 - 1, save_every=1, keep=1, gradient_accumulation=3,
                      schedule="linear", min_lr=0.0, beta1=0.0, beta2=0.999, eps=1e-6)  # fmt: skip
    assert resumed_options({}, json.loads(json.dumps(options.to_json())), RUN) == options
    assert resumed_options({}, remembered(lr=1, other="later", trace=None), RUN).lr == 1.0


def test_a_run_keeps_its_remembered_recompute_and_a_run_without_one_chooses() -> None:
    """Before the choice existed, each run remembered true or false."""
    for recompute in (True, False):
        assert resumed_options({}, remembered(recompute=recompute), RUN).recomputing is recompute
    assert resumed_options({}, remembered(), RUN).recomputing == Options().recomputing == "auto"
    with pytest.raises(ValueError, match=r"--no-recompute differs from --recompute in .*; leave --no-recompute out"):
        resumed_options({"recompute": False}, remembered(recompute=True), RUN)
    with pytest.raises(ValueError, match="--recompute differs from the default in"):
        resumed_options({"recompute": True}, remembered(), RUN)


def test_a_run_keeps_its_replicas_as_it_keeps_its_micro_batches() -> None:
    for name in ("replicas", "micro_batches"):
        typed = f"--{name.replace('_', '-')}"
        with pytest.raises(ValueError, match=f"{typed} 4 differs from 2 in the run runs/one and cannot be changed; leave"):
            resumed_options({name: 4}, remembered(**{name: 2}), RUN)


def test_a_run_older_than_the_choice_goes_on_as_it_did() -> None:
    """The options of commit 1736f6b: the cosine that ends at a tenth, AdamW's numbers, one batch a step, one replica."""
    new = {"replicas", "gradient_accumulation", "schedule", "min_lr", "beta1", "beta2", "eps", "epochs"}
    old = {name: value for name, value in remembered(lr=0.5, steps=500).items() if name not in new}
    options = resumed_options({"steps": 600}, old, RUN)
    assert (options.schedule, options.last_lr, options.beta1, options.beta2, options.eps) == ("cosine", 0.05, 0.9, 0.95, 1e-8)
    assert (options.sequences, options.parts, options.replicas, options.steps, options.warmup) == (12, 1, 1, 600, 50)
    assert options.decay_steps is None


def test_steps_and_epochs_set_the_same_thing_and_the_typed_one_counts() -> None:
    with pytest.raises(ValueError, match=r"--steps 3 and --epochs 2\.0 exclude each other; leave one of them out"):
        new_options({"steps": 3, "epochs": 2.0})
    assert resumed_options({"epochs": 2.0}, remembered(steps=7), RUN).epochs == 2.0
    pending = remembered(epochs=2.0)
    assert resumed_options({}, pending, RUN).epochs == 2.0 and resumed_options({}, pending, RUN).warmup is None
    typed = resumed_options({"steps": 9}, pending, RUN)
    assert (typed.epochs, typed.steps, typed.warmup) == (None, 9, None)


def test_a_run_does_not_end_within_its_original_warm_up() -> None:
    assert resumed_options({"steps": 100}, remembered(), RUN).steps == 100
    with pytest.raises(ValueError, match="--steps 99 is less than the warm-up of 100 steps of the run runs/one"):
        resumed_options({"steps": 99}, remembered(), RUN)


def test_a_file_sets_only_options_that_the_run_does_not_remember(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('lr = 0.5\nsteps = 7\nmax_time = "1m"\nkeep = 3\nseed = 4\n')
    said = {"config": str(config), "keep": 5}
    assert new_options(said) == Options(lr=0.5, steps=7, max_time=60.0, keep=5, seed=4)
    with pytest.warns(UserWarning, match="the run runs/one keeps its own lr, steps; to change an option, type it"):
        options = resumed_options(said, remembered(seed=4), RUN)
    assert options == Options(data="/a/text", host_memory=1 << 20, seed=4, keep=5, max_time=60.0, warmup=100)
    config.write_text("epochs = 3\nbeta1 = 0.5\n")
    assert new_options(said).epochs == 3.0 and new_options({**said, "steps": 4}).epochs is None
    with pytest.warns(UserWarning, match="its own beta1;"):
        options = resumed_options(said, {name: value for name, value in remembered().items() if name != "beta1"}, RUN)
    assert (options.epochs, options.steps, options.beta1) == (None, 2000, 0.9)


def test_output_paths_are_neither_remembered_nor_taken_from_a_file() -> None:
    assert not Options(trace="/a/trace", out="/a/run").to_json().keys() & FORGOTTEN
    options = resumed_options({}, remembered(trace="/etc/passwd", out="/etc"), RUN)
    assert (options.trace, options.out) == (None, None)


NAMES = st.sampled_from(sorted([*CHECKS, "recompute"]))
VALUES = st.none() | st.booleans() | st.integers(-(10**80), 10**80) | st.floats() | st.sampled_from(["a", "\0", "7", []])


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_any_remembered_options_give_options_or_one_sentence(found: dict[str, Any]) -> None:
    try:
        options = resumed_options({}, remembered(**found), RUN)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert options.micro_batches >= 1 and options.save_every >= 1 and options.keep >= 1 and 0 < options.lr < float("inf")


def test_none_unsets_a_remembered_option() -> None:
    recorded = remembered(device="emulated", device_memory=1 << 20, link_rate=1000, spill="/a/disk", spill_limit=4096)
    options = resumed_options({"spill": None, "host_memory": None, "device_memory": None, "link_rate": None}, recorded, RUN)
    assert options == Options(data="/a/text", device="emulated", warmup=100)


@pytest.fixture
def run(train: Program, tmp_path: Path) -> Path:
    assert train("--out", tmp_path / "run", "--steps", 2)[0] == 0
    return tmp_path / "run"


def edit(run: Path, **changes: Any) -> None:
    record = json.loads((run / "run.json").read_text())
    record["options"] |= changes
    (run / "run.json").write_text(json.dumps(record))


def recorded(run: Path) -> dict[str, Any]:
    options: dict[str, Any] = json.loads((run / "run.json").read_text())["options"]
    return options


def test_a_planted_trace_overwrites_nothing(program: Program, run: Path, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    edit(run, trace=str(tmp_path / "letter"), out=str(tmp_path / "elsewhere"))
    assert program("train", "--resume", "--out", run, "--steps", 3)[0] == 0
    assert (tmp_path / "letter").read_text() == "dear" and not (tmp_path / "elsewhere").exists()
    assert "trace" not in recorded(run)


def test_a_remembered_spill_folder_must_be_typed_again_or_given_up(program: Program, run: Path, tmp_path: Path) -> None:
    (tmp_path / "spill").mkdir()
    edit(run, spill=str(tmp_path / "spill"), spill_limit=1 << 22)
    status, out, err = program("train", "--resume", "--out", run, "--steps", 3)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"used --spill {tmp_path / 'spill'}" in err and "--spill none" in err
    assert program("plan", "--resume", "--out", run)[0] == 0
    again = ("train", "--resume", "--out", run, "--steps", 3)
    assert program(*again, "--spill", tmp_path / "spill", "--host-memory", "400KiB")[0] == 0
    assert (recorded(run)["spill"], recorded(run)["host_memory"]) == (str(tmp_path / "spill"), 400 << 10)
    assert program("train", "--resume", "--out", run, "--steps", 4, "--spill", "none", "--host-memory", "none")[0] == 0
    assert (recorded(run)["spill"], recorded(run)["spill_limit"], recorded(run)["host_memory"]) == (None, None, None)


@pytest.mark.parametrize("words", ["--host-memory 150KiB", "--spill /proc", "--device emulated --device-memory 64KiB"])
def test_a_refused_resume_is_not_remembered(program: Program, run: Path, words: str) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    status, _, err = program("train", "--resume", "--out", run, "--steps", 3, "--save-every", 7, *words.split())
    assert (status, err.count("\n")) == (2, 1)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert program("train", "--resume", "--out", run, "--steps", 3, "--save-every", 7)[0] == 0
    assert recorded(run)["save_every"] == 7


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Rates]:
    """A list of the rates of each engine that commands open, and of each plan."""
    found: list[Rates] = []
    end, planned = Engine.__aexit__, plans.plan_step

    async def closing(self: Engine, *error: Any) -> None:
        found.append(self.rates)
        await end(self, *error)

    def planning(config: Any, work: Any, machine: Any, *others: Any) -> Any:
        found.append(machine.rates)
        return planned(config, work, machine, *others)

    monkeypatch.setattr(Engine, "__aexit__", closing)
    monkeypatch.setattr(plans, "plan_step", planning)
    return found


def test_a_resumed_run_and_its_plan_decide_by_the_rates_of_its_start(
    program: Program, run: Path, opened: list[Rates]
) -> None:
    told = json.loads((run / "run.json").read_text())["rates"]
    assert told == {"device": "cpu", "precision": "fp32", **CORES.to_json()}
    other = replace(CORES, disk_per_s=1e6)
    record = json.loads((run / "run.json").read_text()) | {"rates": told | other.to_json()}
    (run / "run.json").write_text(json.dumps(record))
    assert program("train", "--resume", "--out", run, "--steps", 3)[0] == 0
    assert program("plan", "--resume", "--out", run)[0] == 0
    assert json.loads((run / "run.json").read_text())["rates"] == record["rates"]
    assert program("train", "--resume", "--out", run, "--steps", 4, "--device", "emulated")[0] == 0
    assert opened == [other, other, CORES], "what is known of another device is not of this one"
    assert json.loads((run / "run.json").read_text())["rates"] == told | {"device": "emulated"}


def test_a_run_older_than_remembered_rates_goes_on(program: Program, run: Path, opened: list[Rates]) -> None:
    record = json.loads((run / "run.json").read_text())
    del record["rates"]
    (run / "run.json").write_text(json.dumps(record))
    assert program("train", "--resume", "--out", run, "--steps", 3)[0] == 0
    assert opened == [CORES]


@pytest.mark.parametrize("rates", [7, "fast", [], {}, {"device": "cpu", **CORES.to_json(), "disk_per_s": 0}])
def test_invalid_rates_are_refused_in_one_line(program: Program, run: Path, rates: object) -> None:
    record = json.loads((run / "run.json").read_text()) | {"rates": rates}
    (run / "run.json").write_text(json.dumps(record))
    for command in ("train", "plan"):
        status, out, err = program(command, "--resume", "--out", run)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"{run / 'run.json'} was damaged or edited: its rate" in err
