"""Whether the machine runs on its battery, as each system reports it."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from localspec.machine import devices

MAINS = ("POWER_SUPPLY_TYPE=Mains", "POWER_SUPPLY_ONLINE=1")
UNPLUGGED = ("POWER_SUPPLY_TYPE=Mains", "POWER_SUPPLY_ONLINE=0")
BATTERY = ("POWER_SUPPLY_TYPE=Battery", "POWER_SUPPLY_STATUS=Discharging")
FULL = ("POWER_SUPPLY_TYPE=Battery", "POWER_SUPPLY_STATUS=Full")
MOUSE = (*BATTERY, "POWER_SUPPLY_SCOPE=Device")


@pytest.mark.parametrize(
    ("supplies", "found"),
    [
        ((UNPLUGGED, BATTERY), True),
        ((BATTERY,), True),
        ((MAINS, BATTERY), False),
        ((UNPLUGGED, FULL), False),
        ((MOUSE,), False),
        ((), False),
        (None, False),
    ],
)
def test_linux_is_on_battery_if_one_of_its_own_discharges_and_no_mains_is_there(
    supplies, found, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(devices, "_SUPPLIES", tmp_path / "supplies")
    for number, lines in enumerate(supplies or ()):
        (folder := tmp_path / "supplies" / str(number)).mkdir(parents=True)
        (folder / "uevent").write_text("\n".join(lines))
    if supplies == ():
        (tmp_path / "supplies").mkdir()
    assert devices.on_battery() == found


@pytest.mark.parametrize(("source", "found"), [("Battery Power", True), ("AC Power", False)])
def test_macos_names_its_source(source, found, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    printed = SimpleNamespace(stdout=f"Now drawing from '{source}'\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: printed)
    assert devices.on_battery() == found
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError))
    assert not devices.on_battery()


@pytest.mark.parametrize(
    ("line", "works", "found"), [(0, 1, True), (1, 1, False), (255, 1, False), (0, 0, False)]
)
def test_windows_reports_the_state_of_its_line(line, works, found, monkeypatch):
    def status(buffer):
        buffer[0] = line
        return works

    monkeypatch.setattr(sys, "platform", "win32")
    kernel = SimpleNamespace(kernel32=SimpleNamespace(GetSystemPowerStatus=status))
    monkeypatch.setattr(devices.ctypes, "windll", kernel, raising=False)
    assert devices.on_battery() == found
