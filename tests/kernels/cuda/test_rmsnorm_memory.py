"""The backward pass of RMSNorm on GPUs whose blocks have less shared memory, as test_layernorm.py has it of LayerNorm."""

import pytest

from tests.cuda.build import library, missing
from tests.cuda.machine import SoftMachine
from tests.kernels.test_layernorm import SHARED
from tests.kernels.values import assert_close, random
from tests.verbs import VERBS

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.mark.parametrize("width", [2304, 3201, 5000])
def test_backward_of_whole_rows_keeps_its_bits_with_less_shared_memory(width):
    """With too little for one row only the bits differ. The machine asserts that a block asks for no more than there is."""
    x, dinp, gain, before = random(1, 11, width), random(2, 11, width), random(3, width), random(4, 11, width)
    stats = abs(random(6, 11, 1))

    def results(run):
        found = [before.copy(), gain.copy()]
        run("rmsnorm_whole_backward", [dinp, x, stats, gain, *found], (True, True))
        return found

    expected = results(lambda verb, arrays, params: VERBS[verb](*arrays, *params))
    found = {shared: results(SoftMachine(library(), shared=shared).run) for shared in (*SHARED, 16 << 10)}
    for dx, dgain in found.values():
        assert_close(dx, expected[0], 3e-6)
        assert_close(dgain, expected[1], 3e-6)
    fitting = [found[shared] for shared in SHARED if shared >= 16 * 3 * -(-width // 4)]
    assert len(fitting) >= 3
    assert len({b"".join(part.tobytes() for part in parts) for parts in fitting}) == 1
