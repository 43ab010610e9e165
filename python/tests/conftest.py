"""What tests share: the command `plimsoll`, and scenarios."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

TWO = """
name: two
rate: 1Gbps
duration: 200ms
systems: [fifo, plimsoll]
tenants: {gold: {weight: 3}, bronze: {}}
workloads:
  bulk: {tenant: gold, kind: bulk, flows: 2}
  flood: {tenant: bronze, kind: udp, rate: flood}
  ask: {tenant: gold, kind: request_response, rate: 2000}
expect:
  - plimsoll.gold.throughput > fifo.gold.throughput
"""


@pytest.fixture(scope="session")
def plimsoll_command(tmp_path_factory: pytest.TempPathFactory):
    """Runs `plimsoll` and returns what it did; its reports go to a folder of their own."""
    binary = os.environ.get("PLIMSOLL", str(ROOT / "target/release/plimsoll"))
    if not Path(binary).exists():
        pytest.fail(f"{binary} is missing: run `make build`, or name one with PLIMSOLL")
    out = tmp_path_factory.mktemp("report")

    def run(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        more = ("--out", str(out)) if words[0] == "sim" else ()
        return subprocess.run([binary, *words, *more], capture_output=True, text=True, cwd=cwd, check=False)

    return run


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A small scenario of two tenants, as a file."""
    path = tmp_path / "two.yaml"
    path.write_text(TWO)
    return path


@pytest.fixture(scope="session")
def ray_of_two():
    """A local Ray cluster with two workers."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()
