"""The only module that names the engine packages; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pcnn_bench.engine import Engine
from pcnn_bench.errors import ConfigError
from pcnn_bench.network import Network
from pcnn_bench.optimizers import OptimizerSpec
from pcnn_bench.suggest import advice

if TYPE_CHECKING:
    from pcnn_cuda.device import Device

ENGINES = ("baseline", "cuda")


def check_names(names: Sequence[str], where: str) -> None:
    """Raise unless every name is an engine's and none comes twice.

    Raises:
        ConfigError: names ``where`` and the word.
    """
    if not names:
        raise ConfigError(f"{where}: no engine; choose from {', '.join(ENGINES)}")
    for name in names:
        if name not in ENGINES:
            raise _unknown(where, name, ENGINES)
        if names.count(name) > 1:
            raise ConfigError(f"{where}: {name!r} is named {names.count(name)} times; once will do")


def rungs() -> tuple[str, ...]:
    """The rungs of the CUDA engine that are built, lowest first."""
    from pcnn_cuda.ladder import RUNGS

    return tuple(RUNGS)


def check_rung(rung: str | None, where: str) -> str:
    """The rung, or the highest one built for None.

    Raises:
        ConfigError: there is no such rung; names ``where``.
    """
    if rung is None:
        return rungs()[-1]
    if rung not in rungs():
        raise _unknown(where, rung, rungs())
    return rung


def _unknown(where: str, found: str, known: Sequence[str]) -> ConfigError:
    return ConfigError(f"{where}: {found!r} is unknown; {advice(found, known)}")


def one_blas_thread() -> AbstractContextManager[list[dict[str, Any]]]:
    """Hold every BLAS to one thread in the body; yields what each BLAS says of itself."""
    from pcnn_baseline import threads

    return threads.one_blas_thread()


def open_device(choice: str, *, nvcc_flags: Sequence[str], say: Callable[[str], None]) -> Device:
    """Open ``auto``, ``gpu``, ``gpu:N`` or ``emulated``; ``say`` hears why ``auto`` found no GPU.

    Raises:
        DeviceError: it is missing or does not fit.
    """
    from pcnn_cuda import devices

    return devices.open_device(choice, nvcc_flags=nvcc_flags, say=say)


def make_baseline(
    network: Network,
    *,
    batch_size: int,
    optimizer: OptimizerSpec,
    dtype: type[np.float32] | type[np.float64] = np.float32,
) -> Engine:
    """The sequential engine."""
    from pcnn_baseline.engine import BaselineEngine

    return BaselineEngine(network, batch_size=batch_size, optimizer=optimizer, dtype=dtype)


def make_cuda(
    network: Network,
    *,
    batch_size: int,
    optimizer: OptimizerSpec,
    device: Device,
    rung: str,
    direction: Literal["push", "pull"] = "push",
    history_images: int = 0,
) -> Engine:
    """The CUDA engine on an open device; compiles its kernels. It keeps the losses of ``history_images`` images.

    Raises:
        DeviceMemoryError: the network does not fit; names the layer, the bytes and the largest
            batch that does.
        DeviceError: a kernel does not compile.
    """
    from pcnn_cuda.engine import CudaEngine

    return CudaEngine(
        network,
        batch_size=batch_size,
        optimizer=optimizer,
        device=device,
        rung=rung,
        direction=direction,
        history_images=history_images,
    )


def prefetch(
    networks: Sequence[Network], *, device: Device, rung: str, optimizer: OptimizerSpec
) -> None:
    """Compile what these networks need, side by side, before engines are made of them one by one.

    Raises:
        DeviceError: a kernel does not compile.
    """
    from pcnn_cuda.engine import sources_of
    from pcnn_cuda.plan import Plan

    plans = [Plan(each, rung=rung, batch_size=1, optimizer=optimizer) for each in networks]
    device.prefetch(sources_of(plans))


def kernel_names(rung: str) -> list[str]:
    """Every kernel that the sources of a rung define."""
    from pcnn_cuda.ladder import kernels_of

    return kernels_of(rung)


def cuda_diagnosis() -> list[dict[str, str]]:
    """What the machine has and lacks for the CUDA engine: name, status, found, remedy."""
    from pcnn_cuda import diagnosis

    return diagnosis.diagnose()
