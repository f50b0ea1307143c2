"""The counts of the idle driver."""

import threading

from tests.cuda.idle import IdleDriver


def test_calls_are_counted_by_name_and_bind_once_for_each_thread():
    driver = IdleDriver()
    stream, event = driver.new_stream(), driver.new_event(timed=True)
    threads = [threading.Thread(target=lambda: [driver.bind() for _ in range(3)]) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    for _ in range(4):
        driver.record(event, stream)
        driver.synchronize(event)
    driver.launch_graph(driver.captured, stream)
    made = {name: count for name, count in driver.calls.items() if count}
    assert made == {"bind": 2, "new_stream": 1, "new_event": 1, "record": 4, "synchronize": 4, "launch_graph": 1}


def test_nodes_of_a_graph_are_counted_on_the_streams_that_take_part():
    driver = IdleDriver()
    compute, up, down = (driver.new_stream() for _ in range(3))
    driver.open_gemm(compute, tf32=False)
    driver.open_attention(compute)
    event, other = driver.new_event(), driver.new_event()

    def work():
        for stream in (compute, up, down):
            driver.copy(0, 0, 0, stream)
        driver.launch("fill_f32", (1,), 1, 0, 0, compute)
        driver.gemm()
        assert driver.gemm_onto() and driver.attend() and driver.attend_backward()

    work()
    driver.begin_capture(compute)
    driver.record(event, compute)
    driver.record(other, down)
    driver.wait(up, event)
    work()
    driver.record(event, down)  # and no longer on a captured stream
    driver.wait(down, event)
    work()
    graph = driver.end_capture(compute)
    work()
    assert graph == 1
    assert driver.captured == [{"copy": 4, "launch": 2, "gemm": 2, "gemm_onto": 2, "attend": 2, "attend_backward": 2}]
    assert driver.calls["copy"] == 12 and driver.calls["gemm"] == 4
    driver.begin_capture(up)
    assert driver.end_capture(up) == 2
    assert not driver.captured[1]
