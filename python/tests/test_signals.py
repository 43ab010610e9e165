"""Other threads go on while the simulator runs, and Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import plimsoll


def test_other_threads_go_on(two):
    scenario = plimsoll.load(two)
    over, ticks = threading.Event(), []

    def tick() -> None:
        while not over.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.005)

    thread = threading.Thread(target=tick)
    thread.start()
    begun = time.monotonic()
    scenario.run(duration="2s", threads=1)
    took = time.monotonic() - begun
    over.set()
    thread.join()
    during = [at for at in ticks if begun < at < begun + took]
    longest = max(b - a for a, b in zip(during, during[1:], strict=False))
    assert longest < took / 2 and len(during) > 5, (took, longest, len(during))


INTERRUPTED = """
import sys, time, plimsoll
if __name__ == "__main__":
    scenario = plimsoll.load(sys.argv[1])
    print("begun", flush=True)
    try:
        if sys.argv[2] == "run":
            scenario.run(duration="3600s")
        else:
            plimsoll.sweep(scenario, seeds=4, duration="3600s", on=sys.argv[2], workers=2)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        time.sleep(0.5)
        before = time.process_time()
        time.sleep(0.5)
        print("quiet" if time.process_time() - before < 0.2 else "busy", flush=True)
"""


@pytest.mark.parametrize("on", ["run", "threads", "processes", "ray"])
def test_ctrl_c_ends_a_run_within_a_second(two, on):
    command = [sys.executable, "-c", INTERRUPTED, str(two), on]
    if on in ("processes", "ray"):
        script = two.with_name("interrupted.py")
        script.write_text(INTERRUPTED)
        command = [sys.executable, str(script), str(two), on]
    environment = {**os.environ, "PLIMSOLL_TEST": str(two)}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    time.sleep({"ray": 12.0, "processes": 3.0}.get(on, 1.0))
    child.send_signal(signal.SIGINT)
    sent = time.monotonic()
    said = child.stdout.readline()
    took = time.monotonic() - sent
    rest, errors = child.communicate(timeout=60)
    assert (said, rest) == ("interrupted\n", "quiet\n"), errors
    assert took < (3.0 if on == "ray" else 1.0), "Ray's own calls are slow on a busy machine"
    assert not left_over(str(two)), "workers have ended"
    print(f"{on}: interrupted {took * 1e3:.0f} ms after the signal")


def left_over(mark: str) -> list[str]:
    """Processes that a test has started, and those that they have, by a variable of their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"PLIMSOLL_TEST={mark}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_a_signal_handler_that_does_not_raise_ends_nothing(two):
    told = []
    before = signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
    try:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        assert plimsoll.load(two).run(duration="2s").to_dict()["duration_seconds"] == 2.0
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert told


def test_after_ctrl_c_ray_is_free_for_other_sweeps(two, ray_of_two):
    plimsoll.sweep(two, seeds=1, on="ray")  # workers have started
    timer = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        plimsoll.sweep(two, seeds=4, duration="3600s", on="ray")
    assert time.monotonic() - begun < 3.0
    begun = time.monotonic()
    assert len(plimsoll.sweep(two, seeds=2, on="ray")) == 1
    took = time.monotonic() - begun
    print(f"ray: free {took:.1f} s after the sweep was interrupted")
    assert took < 10.0
