"""What is shipped: wheel and sdist carry the UI, the registry and the demo pair; CI runs the README's command."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = (
    "localspec/tui/app.py",
    "localspec/models.toml",
    "localspec/py.typed",
    "localspec/demo/demo-target.gguf",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel that is built from the sdist."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return out


def test_the_wheel_carries_the_terminal_ui_the_registry_and_the_demo_pair(built):
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    assert set(SHIPPED) <= set(names)
    assert any(name.startswith("localspec/tui/") and name.endswith(".tcss") for name in names)
    assert "localspec/tui.py" not in names, (
        "the checkout's bridge would shadow nothing, but it does not belong there"
    )
    assert not any(name.startswith(("tui/", "tests/")) for name in names)


def test_the_sdist_carries_what_a_wheel_is_built_from(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"tui/app.py", "models.toml", "localspec/tui.py", "LICENSE", "README.md"} <= names


def test_a_checkout_finds_the_terminal_ui_and_the_registry():
    from localspec.models.registry import registry_file

    assert registry_file().is_file()
    import localspec.tui

    assert (Path(next(iter(localspec.tui.__path__))) / "app.py").is_file()


def test_ci_runs_the_test_command_of_the_readme():
    command = "pip install '.[test]' && pytest"
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
