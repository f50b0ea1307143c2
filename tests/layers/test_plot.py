"""The picture of a run's loss."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asynctile.layers.curves import read_curves
from asynctile.layers.labels import labels_of
from asynctile.layers.plot import loss_curve, png

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with open(path, "w") as file:
        for step in range(1, 301):
            record = {"step": step, "loss": 5.5 * step**-0.2 + 0.2 * math.sin(step * 12.9898) ** 3}
            if step % 50 == 0:
                loss = 5.5 * step**-0.2 + 0.1 + (step == 300) * 0.2
                record |= {"validation_loss": loss, "validation_perplexity": math.exp(loss),
                           "validation_bits_per_byte": loss / 2}
            file.write(json.dumps(record) + "\n")
    return path


@pytest.fixture
def no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def test_matplotlib_draws_a_png(metrics, tmp_path):
    pytest.importorskip("matplotlib")
    assert loss_curve(metrics, tmp_path / "loss.png", bigram_loss=2.4) == tmp_path / "loss.png"
    content = (tmp_path / "loss.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == 960


def test_without_matplotlib_the_same_curves_are_an_svg(metrics, tmp_path, no_matplotlib):
    path = loss_curve(metrics, tmp_path / "loss.png", bigram_loss=2.4)
    assert path == tmp_path / "loss.svg"
    root = ElementTree.parse(path).getroot()
    lines = [line.get("points").split() for line in root.iter(f"{SVG}polyline")]
    assert [len(points) for points in lines] == [300, 300, 6]
    for x, y in (map(float, point.split(",")) for points in lines for point in points):
        assert 72 <= x <= 654
        assert 44 <= y <= 424
    texts = [text.text for text in root.iter(f"{SVG}text")]
    legend = ["training, each step", "training, smoothed", "validation", "best validation", "bigram model"]
    assert [text for text in texts if text in legend] == legend
    assert [text.text for text in root.iter(f"{SVG}text") if text.get("x") == "662"] == [
        "2.4000", "2.0577", "perplexity 7.828", "1.0288 bits per byte", "1.9229, step 250", "perplexity 6.841",
        "0.9615 bits per byte", "1.7741",
    ]  # fmt: skip
    assert {"step", "loss (nats per token)"} <= set(texts)


def heights(path):
    """Return the height of each text of a picture, by the text."""
    return {text.text: float(text.get("y")) for text in ElementTree.parse(path).getroot().iter(f"{SVG}text") if text.get("y")}


def test_a_mark_never_sets_the_axis(metrics, tmp_path, no_matplotlib):
    """A mark beyond the losses is shown as a number at the border."""
    def polylines(mark):
        path = loss_curve(metrics, tmp_path / "loss.png", bigram_loss=mark)
        return [line.get("points") for line in ElementTree.parse(path).getroot().iter(f"{SVG}polyline")], heights(path)

    plain, _ = polylines(None)
    for mark, said, least, most in (
        (2.4, "2.4000", 44, 424), (0.01, "0.010000, below", 400, 440), (99.0, "99.000, above", 40, 70)
    ):  # fmt: skip
        drawn, texts = polylines(mark)
        assert drawn == plain
        assert least <= texts[said] <= most
        assert ("bigram model" in texts) == (mark == 2.4)


def test_a_mark_never_sets_the_axis_of_matplotlib(metrics, tmp_path):
    figures = pytest.importorskip("matplotlib.figure")
    ends = set()
    for mark in (None, 2.4, 0.01, 99.0):
        figure = figures.Figure()
        png(read_curves(metrics, mark), figure)
        ends.add(figure.axes[0].get_ylim())
    assert len(ends) == 1


@pytest.mark.parametrize("losses", [(2.0, 2.0, 2.0, 2.0), (1.0, 9.0, 1.01, 1.02), (1.0, 9.0, 8.99, 8.98), (1.0, 9.0, 5.0, 5.1)])
def test_no_numbers_of_the_axis_overlap(losses, tmp_path):
    low, high, last, mark = losses
    lines = [{"step": 1, "loss": high}, {"step": 2, "loss": low},
             {"step": 2, "validation_loss": low, "validation_perplexity": 2.0},
             {"step": 3, "validation_loss": last, "validation_perplexity": 3.0, "validation_bits_per_byte": 4.0}]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    labels = labels_of(read_curves(tmp_path / "metrics.jsonl", mark), low - 0.1, high + 0.1, 0.04)
    assert len(labels) >= 3
    for above, below in itertools.pairwise(labels):
        assert above.height - below.height >= 0.04 * len(above.lines)
    assert labels[0].height <= 1.02 and labels[-1].height - 0.04 * (len(labels[-1].lines) - 1) >= -0.02


def test_a_higher_loss_stands_higher(metrics, tmp_path, no_matplotlib):
    metrics.write_text('{"step": 1, "loss": 5.0}\n{"step": 2, "loss": 3.0}\n')
    root = ElementTree.parse(loss_curve(metrics, tmp_path / "loss.png")).getroot()
    (x1, y1), (x2, y2) = (
        map(float, p.split(",")) for p in next(root.iter(f"{SVG}polyline")).get("points").split()
    )
    assert x1 < x2
    assert y1 < y2  # pixels count downwards
    assert not [text.text for text in root.iter(f"{SVG}text") if "validation" in text.text or "best" in text.text]


@pytest.mark.parametrize(
    "line", ['{"step": 1, "loss": 4.0}', '{"step": 1, "loss": 0.0}', '{"step": 1, "loss": 123456.0}']
)
def test_one_step_is_enough(metrics, tmp_path, line, monkeypatch):
    metrics.write_text(line + "\n")
    loss_curve(metrics, tmp_path / "loss.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ElementTree.parse(loss_curve(metrics, tmp_path / "loss.png"))


def test_skipped_steps_cut_lines_and_repeated_steps_do_no_harm(metrics, tmp_path, no_matplotlib):
    metrics.write_text('{"step": 1, "loss": 4}\n{"step": 2, "loss": NaN}\n{"step": 3, "loss": null}\n'
                       '{"step": 4, "loss": 3}\n{"step": 4, "loss": 3.5}\n{"step": 5, "lo')  # fmt: skip
    root = ElementTree.parse(loss_curve(metrics, tmp_path / "loss.png")).getroot()
    assert len(next(root.iter(f"{SVG}polyline")).get("points").split()) == 2


def test_metrics_without_a_loss_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"metrics\.jsonl cannot be read"):
        loss_curve(tmp_path / "metrics.jsonl", tmp_path / "loss.png")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": NaN}\n')
    with pytest.raises(ValueError, match=r"no loss that can be drawn in its 1 lines"):
        loss_curve(tmp_path / "metrics.jsonl", tmp_path / "loss.png")
    assert not (tmp_path / "loss.png").exists()


@pytest.mark.parametrize("line", [
    '{"step": 3, "loss": 1e999}', '{"step": 3}', '{"step": 3, "loss": 1.7e308}', '{"step": 3, "loss": -1.7e308}',
    '{"step": 3, "validation_loss": 1e301}', '{"step": 3, "loss": "low"}', '{"step": 1' + "0" * 80 + ', "loss": 1.5}',
])  # fmt: skip
def test_lines_without_a_loss_to_draw_are_left_out(tmp_path, no_matplotlib, line):
    """test_report.py tests lines that are no steps."""
    whole = [json.dumps({"step": step, "loss": 1.0 + step}) for step in (1, 2)]
    pictures = []
    for lines in (whole, [whole[0], line, whole[1]]):
        (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
        pictures.append(loss_curve(tmp_path / "metrics.jsonl", tmp_path / "loss.png").read_bytes())
    assert pictures[0] == pictures[1]


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=5), st.integers(1, 1 << 52))
@example([1e300, -1e300], 1)
@example([5e-324, 1e-323], 1)
@example([1.0, math.nextafter(1.0, 2.0)], 1)
@example([1e300, math.nextafter(1e300, 0.0)], 1)
def test_every_finite_loss_has_a_place_in_the_picture(tmp_path_factory, losses, first):
    folder = tmp_path_factory.mktemp("plot")
    lines = [json.dumps({"step": first + n, "loss": loss}) + "\n" for n, loss in enumerate(losses)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    with pytest.MonkeyPatch.context() as without:
        without.setitem(sys.modules, "matplotlib.figure", None)
        root = ElementTree.parse(loss_curve(folder / "metrics.jsonl", folder / "loss.png")).getroot()
    training = next(root.iter(f"{SVG}polyline")).get("points").split()
    assert len(training) == len(losses)
    for x, y in (map(float, point.split(",")) for point in training):
        assert 72 <= x <= 654
        assert 44 <= y <= 424


@pytest.mark.timeout(10)
def test_metrics_that_are_not_lines_are_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").touch()
    os.truncate(tmp_path / "long", 1 << 40)
    for name, why in [("pipe", "it is a pipe"), ("long", "line 1 has more than 64.00 KiB")]:
        with pytest.raises(ValueError, match=rf"metrics .*{name} cannot be read: {why}"):
            loss_curve(tmp_path / name, tmp_path / "loss.png")


def test_the_smoothed_curve_begins_with_the_first_loss_and_ends_in_a_mean(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {n}, "loss": {5.0 if n == 1 else n % 2}}}\n' for n in range(1, 201)))
    smoothed = read_curves(path, None).smoothed
    assert smoothed[0] == (1, 5.0)
    assert smoothed[-1] == (200, 0.4) and smoothed[100] == (101, 5 / 9)
