"""The names of devices: what each stands for, and which names are refused with which sentence."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.device.names import MOST, joined, names_of, stream_name
from asynctile.errors import DeviceError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("auto", ["auto"]),
        ("cpu", ["cpu"]),
        ("emulated", ["emulated"]),
        ("emulated*1", ["emulated"]),
        ("emulated*4", ["emulated"] * 4),
        ("cuda", ["cuda"]),
        ("cuda:1", ["cuda:1"]),
        ("cuda:0-3", ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        ("cuda:2,cuda:0", ["cuda:2", "cuda:0"]),
        ("cuda:0-1, cuda:5", ["cuda:0", "cuda:1", "cuda:5"]),
        ("cuda:3-3", ["cuda:3"]),
        ("cuda:all", ["cuda:all"]),
    ],
)
def test_a_name_stands_for_these_devices_in_this_order(text, names):
    assert list(names_of(text)) == names


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cuda:0,cuda:0", "names cuda:0 twice: name each device once$"),
        ("cuda:0-3,cuda:2", "names cuda:2 twice"),
        ("emulated,emulated", r"names emulated twice: name each device once; two of them are 'emulated\*2'"),
        ("emulated*2,emulated", "names emulated twice"),
        ("cpu,cpu", "names cpu twice"),
        ("cpu,cuda:0", "names unlike devices, cpu and cuda: name devices of one kind"),
        ("emulated*2,cuda:1", "names unlike devices, emulated and cuda"),
        ("cpu*2", "is RAM several times, and there is one: give 'cpu'"),
        ("emulated*0", r"asks for 0 devices: expected a number from 1 to 64, such as 'emulated\*2'"),
        ("emulated*-1", "asks for -1 devices"),
        ("emulated*1.5", "asks for 1.5 devices"),
        ("emulated*two", "asks for two devices"),
        ("emulated*\N{SUPERSCRIPT TWO}", "devices: expected a number"),
        ("emulated*", "asks for no number of devices"),
        ("emulated*65", "asks for 65 devices"),
        ("emulated*999999999999", "asks for 999999999999 devices"),
        ("cuda:0-999999", "asks for 1000000 devices"),
        ("cuda:0-63,cuda:64", "asks for 65 devices"),
        ("cuda:3-1", "counts down: write 'cuda:1-3'"),
    ],
)
def test_a_name_of_no_set_of_devices_is_refused_in_one_sentence(text, says):
    with pytest.raises(ValueError, match=says) as caught:
        names_of(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:x", "cuda:0,", "cuda:-1", "cuda*2", "auto,cpu", "emulated:1"])
def test_an_unknown_name_is_refused_with_the_known_ones(text):
    with pytest.raises(DeviceError, match=re.escape(f"unknown device {text!r}: expected 'auto', 'cpu', ")):
        names_of(text)


def test_the_streams_of_several_devices_have_names_of_their_own():
    assert stream_name("compute", 0, 1) == "compute"
    assert [stream_name("compute", number, 2) for number in range(2)] == ["compute:0", "compute:1"]


GPUS = st.lists(st.integers(0, 999), min_size=1, max_size=MOST, unique=True)


@given(st.one_of(
    st.integers(1, MOST).map(lambda count: ("emulated",) * count),
    GPUS.map(lambda numbers: tuple(f"cuda:{number}" for number in numbers)),
    st.just(("cpu",)),
))  # fmt: skip
def test_the_joined_name_of_devices_names_them(names):
    assert names_of(joined(names)) == names


@given(st.text("cpuemlatd:,*-0123456789 ", max_size=20))
def test_any_text_names_devices_or_is_refused(text):
    try:
        names = names_of(text)
    except (ValueError, DeviceError):
        return
    assert 1 <= len(names) <= MOST
