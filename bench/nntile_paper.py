"""What the NNTile paper measured on eight A100, and the models of its figures: data for bench_policies.py. Nothing is fitted.

The paper is arXiv 2504.13236. Its figures of speed by model size also stand in its repository as vector graphics, since
January 2024: images/gpt_short_perf_8gpu.pdf and images/gpt_short8_perf.pdf of github.com/nntile/nntile at commit 18a23b9c. The
figures below are the coordinates of their lines, so they are exact to 0.1 TFLOP/s. 0 means that the model did not train.

The shapes follow from the places of the points along the axis, which is linear in parameters. Along each line they are, to
12 digits, a d^2 + b d with widths d in steps of 1,024, where a : b is 12 layers : 51,201 + 2 layers. So one matrix serves as
embedding and head, and vocabulary and positions together are 51,200. The repository's scripts take 1,024 positions by default,
which leaves 50,176 words. The figures' titles give the machine: "8xA100 80GB SXM, 900GB RAM". Speed counts three times the
products of forward, as wrappers/python/examples/gpt2_perf_workflow.py does there. The size of a batch is nowhere said.
"""

from __future__ import annotations

from asynctile.layers import GPT2Config

#: Positions and words of every model.
LENGTH, VOCABULARY = 1024, 50_176
#: Elements of a head: an assumption; the products are the same for any.
HEAD = 128
#: TFLOP/s of NNTile in TF32, by layers and width. Of the points that the axis does not name, four are left out.
NNTILE = {
    4: {5120: 558.7, 7168: 628.6, 9216: 651.1, 11264: 649.6, 13312: 698.1, 14336: 718.6, 15360: 700.7, 16384: 613.4,
        17408: 604.7, 18432: 641.6, 19456: 646.3, 20480: 620.4, 21504: 634.9, 22528: 561.1, 23552: 540.0, 24576: 502.2,
        25600: 531.2, 26624: 513.8, 27648: 521.1, 28672: 469.9, 29696: 360.1, 30720: 397.1, 31744: 348.9, 32768: 0.0},
    8: {5120: 529.0, 6144: 495.5, 7168: 553.1, 8192: 577.2, 9216: 562.0, 10240: 499.0, 11264: 518.4, 12288: 528.6, 13312: 550.3,
        14336: 487.4, 15360: 387.4, 16384: 443.4, 17408: 416.0, 18432: 410.0, 19456: 350.7, 20480: 313.9, 21504: 313.8,
        22528: 317.3, 23552: 0.0},
}  # fmt: skip
#: The same for FSDP in TF32, up to the first size that did not train.
FSDP = {
    4: {5120: 716.3, 7168: 708.0, 9216: 695.7, 11264: 346.5, 13312: 0.0},
    8: {5120: 700.5, 6144: 703.0, 7168: 701.2, 8192: 693.5, 9216: 597.6, 10240: 306.4, 11264: 0.0},
}  # fmt: skip
#: RAM of the node in bytes, as the titles of the figures give it.
RAM = 900_000_000_000
#: Sequences of a step: an assumption, eight for each GPU.
BATCH = 64
#: The models to simulate, widths by layers: about 10.6 B, 23 B and 50 B parameters. With 4 and 8 layers they are models of the
#: figures. With 16 and 32 layers they are the same family, at widths that are multiples of 256.
MODELS = {4: (14336, 21504, 31744), 8: (10240, 15360, 22528), 16: (7168, 10752, 15872), 32: (5120, 7680, 11264)}


def model(layers: int, width: int) -> GPT2Config:
    """Return a model of the paper's family."""
    return GPT2Config(n_layer=layers, n_head=width // HEAD, n_embd=width, block_size=LENGTH, vocab_size=VOCABULARY)
