"""The trial of a library before its use: correct and repeatable results pass, everything else is named."""

import numpy as np
import pytest

from asynctile.device.probe import wrong_product
from tests.cuda.context import view
from tests.cuda.driver import SoftDriver


@pytest.fixture
def driver():
    made = SoftDriver()
    made.stream = made.new_stream()
    yield made
    made.destroy_stream(made.stream)


def product(driver, change=None):
    """A product as a library enqueues it, with `change` applied to its result."""
    driver.open_gemm(driver.stream, tf32=False)

    def run(a, b, c, ta, tb, source, bias):
        done = driver.gemm_onto(a, b, c, ta, tb, source, bias)
        if change is not None:
            driver.streams[driver.stream].put(lambda: change(view(c), bias is not None))
        return done

    return run


def test_a_correct_product_passes_and_leaves_no_memory(driver):
    assert wrong_product(product(driver), driver, driver.stream) is None
    assert driver.memory()[0] == driver.memory()[1]


def test_a_library_that_does_nothing_for_these_types_passes(driver):
    assert wrong_product(lambda *args: False, driver, driver.stream) is None


def test_a_bias_that_is_left_out_is_found(driver):
    def without_bias(a, b, c, ta, tb, source, bias):
        return driver.gemm_onto(a, b, c, ta, tb, source, None)

    driver.open_gemm(driver.stream, tf32=False)
    assert "wrong results (uint16 to float32, source False, bias True" in wrong_product(without_bias, driver, driver.stream)


def test_an_element_that_is_not_written_is_found(driver):
    def forget(c, biased):
        c[-1, -1] = np.nan if c.dtype == np.float32 else 0xFFFF

    assert "wrong results" in wrong_product(product(driver, forget), driver, driver.stream)


def test_results_that_differ_from_run_to_run_are_found(driver):
    random = np.random.default_rng()

    def shake(c, biased):
        if c.dtype == np.float32:
            c *= np.float32(1 + 1e-5 * random.random())

    assert "differ from run to run" in wrong_product(product(driver, shake), driver, driver.stream)


def test_a_library_that_raises_is_named(driver):
    def broken(*args):
        raise RuntimeError("cublasLtMatmul failed: not supported")

    assert wrong_product(broken, driver, driver.stream) == "RuntimeError: cublasLtMatmul failed: not supported"
