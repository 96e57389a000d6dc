"""Whether this machine runs on its battery."""

import ctypes
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_SUPPLIES = Path("/sys/class/power_supply")


def on_battery() -> bool:
    """Return whether the machine runs on its battery; False if the system does not report it."""
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        if sys.platform == "win32":
            status = (ctypes.c_ubyte * 12)()  # SYSTEM_POWER_STATUS: its first byte is 0 on battery
            return bool(ctypes.windll.kernel32.GetSystemPowerStatus(status)) and status[0] == 0
        if sys.platform == "darwin":
            pmset = subprocess.run(["pmset", "-g", "batt"], capture_output=True, text=True, timeout=5)
            return "'Battery Power'" in pmset.stdout
        texts = [set((folder / "uevent").read_text().splitlines()) for folder in _SUPPLIES.iterdir()]
        mains = any("POWER_SUPPLY_ONLINE=1" in text for text in texts)
        empties = {"POWER_SUPPLY_TYPE=Battery", "POWER_SUPPLY_STATUS=Discharging"}
        # Skip batteries of the scope "Device": they belong to a mouse or a keyboard.
        return not mains and any(empties <= t and "POWER_SUPPLY_SCOPE=Device" not in t for t in texts)
    return False
