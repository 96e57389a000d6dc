"""The machine, the versions and the day of a measurement."""

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime

import localspec
from localspec import api


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything but the models that a speed depends on."""

    devices: tuple[str, ...]  # as llama.cpp describes them
    cores: int  # that the operating system counts
    threads: int  # that decoding uses on the CPU
    system: str
    python: str
    localspec: str
    llama_cpp_python: str
    llama_cpp: str
    measured_at: str  # ISO 8601, UTC

    def sentence(self) -> str:
        return (
            f"{', '.join(self.devices)}; {self.threads} threads on {self.cores} cores; {self.system}; "
            f"localspec {self.localspec}, llama-cpp-python {self.llama_cpp_python} ({self.llama_cpp}); "
            f"{self.measured_at[:10]}"
        )


def this_machine(threads: int | None = None) -> Machine:
    backend = api.backend()
    return Machine(
        devices=tuple(f"{device.name} ({device.description})" for device in api.devices()),
        cores=os.cpu_count() or 1,
        threads=threads or api.default_threads(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        localspec=localspec.__version__,
        llama_cpp_python=backend.binding_version,
        llama_cpp=backend.llama_version,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
