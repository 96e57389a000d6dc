"""One training run shared by several processes of one thread each, which on small models beats threads.

Measured on two cores: 6,900 tokens a second with two threads, 11,300 with two processes.
"""

import os
import socket
from collections.abc import Callable, Iterable
from contextlib import closing

import torch
from torch import Tensor, distributed, multiprocessing


def run(work: Callable[..., None], processes: int, *arguments: object) -> None:
    """Call `work(*arguments)` in that many processes at once; one process is this one."""
    if processes == 1:
        work(*arguments)
        return
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    multiprocessing.spawn(_member, (processes, work, arguments), nprocs=processes)


def free_port() -> int:
    """A port that nobody listens on now."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _member(rank: int, processes: int, work: Callable[..., None], arguments: tuple[object, ...]) -> None:
    distributed.init_process_group("gloo", rank=rank, world_size=processes)
    work(*arguments)
    distributed.destroy_process_group()


def rank() -> int:
    """This process's number; the first one saves and reports."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def processes() -> int:
    """How many share the run."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


@torch.no_grad()
def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace every gradient by its mean over the processes."""
    if processes() == 1:
        return
    gradients = [p.grad for p in parameters]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= processes()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))
