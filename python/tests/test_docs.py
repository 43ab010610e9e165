"""The examples of docs/python.md run in their order, as one program."""

from __future__ import annotations

import re

from conftest import ROOT


def test_the_examples_of_the_page_run(monkeypatch, tmp_path):
    for name in ("examples",):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert names["frame"].shape[0] == 4 * len(names["scenario"].systems)
    assert (tmp_path / "throughput.png").stat().st_size > 10_000
    assert len(names["on_ray"]) == 2
