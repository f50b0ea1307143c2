"""The repr of an engine, a share, a model and a trainer at any time."""

from __future__ import annotations

import os

from asynctile import Engine
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from asynctile.layers.model import model_state_of


async def test_reprs_are_right_before_while_and_after_the_objects_can_be_used() -> None:
    engine = Engine("emulated", device_memory="1MiB", host_memory="16MiB")
    whole = "<Engine on emulated in fp32 with device memory 1.00 MiB, RAM 16.00 MiB; "
    assert repr(engine) == whole + "not open>"
    async with engine:
        assert repr(engine) == whole + "open>"
        model = await GPT2.create(engine, GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=8, vocab_size=32))
        model.name = "mine"
        trainer = Trainer(model, AdamW(lr=0.5), clip_norm=1.0)
        assert repr(model) == (
            "<GPT2 mine: 3,952 parameters, 1 layer, 2 heads, width 16, vocabulary 32; on emulated after step 0>"
        )
        assert repr(trainer).startswith("<Trainer of mine after step 0: AdamW(lr=0.5, betas=(0.9, 0.95), ")
        assert repr(trainer).endswith("clip_norm=1.0, micro_batches=1, replicas=1, recompute='auto'>")
        async with engine.share(host_memory="4MiB", device_memory="256KiB", name="b") as share:
            part = "<Share 'b' on emulated in fp32 with device memory 256.00 KiB, RAM 4.00 MiB; "
            assert repr(share) == part + "open>"
        assert repr(share) == part + "not open>"
        model_state_of(model).torn = "a step failed"
        assert repr(model).endswith("after step 0, torn>")
    assert repr(engine) == whole + "not open>"
    assert "after step 0" in repr(trainer)


async def test_a_forked_child_is_told_whose_engine_it_holds(monkeypatch) -> None:
    async with Engine("cpu", host_memory="1MiB") as engine:
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            assert repr(engine) == "<Engine on cpu in fp32 with RAM 1.00 MiB; of another process>"
