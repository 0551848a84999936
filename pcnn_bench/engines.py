"""The only module that names the engine packages; each is imported when it is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pcnn_bench import environment
from pcnn_bench.engine import Engine
from pcnn_bench.environment import MEBIBYTE
from pcnn_bench.errors import ConfigError, DeviceError, UnavailableError
from pcnn_bench.network import Network
from pcnn_bench.optimizers import OptimizerSpec
from pcnn_bench.suggest import advice

if TYPE_CHECKING:
    from pcnn_bench.config import Config
    from pcnn_cuda.device import Device

BaselineType = type[np.float32] | type[np.float64]
"""float32 is what is measured, float64 what results are compared with."""
DIRECTIONS: tuple[Literal["push", "pull"], ...] = ("push", "pull")
ENGINES = ("baseline", "cuda")
COMPARISON_FACTOR = 2.5
"""A float64 baseline is made to be compared with, and what is carried from stage to stage and the
bounds on errors come on top: 1.9 to 2.4 times the engine alone on the shipped networks."""


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


def check_rungs(config: Config, rung: str | None = None) -> tuple[str, ...]:
    """The rung to run (``rung`` replaces the config's), then those that layers choose themselves.

    Raises:
        ConfigError: one of them does not exist; names where it was chosen.
    """
    where = "cuda.rung" if rung is None else "--rung"
    chosen = [check_rung(config.cuda.rung if rung is None else rung, where)]
    for index, layer in enumerate(config.network.layers):
        if layer.cuda and layer.cuda.rung is not None:
            chosen.append(check_rung(layer.cuda.rung, f"network.layers[{index}].cuda.rung"))
    return tuple(chosen)


def check_ladder(names: Sequence[str], where: str) -> tuple[str, ...]:
    """These rungs in the order of the ladder; all that are built for none.

    Raises:
        ConfigError: one does not exist or comes twice; names ``where``.
    """
    for name in names:
        check_rung(name, where)
        if names.count(name) > 1:
            raise ConfigError(f"{where}: {name!r} is named {names.count(name)} times; once will do")
    return tuple(rung for rung in rungs() if rung in names or not names)


def compare_plans(
    network: Network,
    rungs: Sequence[str],
    *,
    batch_size: int,
    optimizer: OptimizerSpec,
    direction: Literal["push", "pull"] | None,
) -> dict[str, dict[str, Any]]:
    """For each of these rungs, as run.json records it: ``coverage`` and ``same_plan_as``.

    ``coverage`` counts the stages of the rung (``taken``) and those that it could take (``possible``); None for a rung
    that adds no op to the one below. ``same_plan_as`` names the rung before, if both launch the same; else it is empty.
    """
    from pcnn_cuda.coverage import coverage, launched
    from pcnn_cuda.plan import Plan

    found: dict[str, dict[str, Any]] = {}
    before: tuple[str, object] = ("", None)
    for rung in rungs:
        plan = Plan(
            network, rung=rung, batch_size=batch_size, optimizer=optimizer, direction=direction
        )
        counts = coverage(plan)
        found[rung] = {
            "coverage": counts and {"taken": counts[0], "possible": counts[1]},
            "same_plan_as": before[0] if launched(plan) == before[1] else "",
        }
        before = (rung, launched(plan))
    return found


def describe_plans(
    network: Network,
    rungs: Sequence[str],
    *,
    batch_size: int,
    optimizer: OptimizerSpec,
    direction: Literal["push", "pull"] | None,
) -> list[dict[str, Any]]:
    """The plan of each of these rungs in numbers that JSON can hold; arithmetic alone, no device is opened.

    As ``pcnn_cuda.description.describe`` has them, with ``same_plan_as``: the rung before, if both launch the same,
    else empty. Of a plan that cannot be made there is only ``rung`` and ``error``.
    """
    from pcnn_cuda.coverage import launched
    from pcnn_cuda.description import describe
    from pcnn_cuda.plan import Plan

    found: list[dict[str, Any]] = []
    before: tuple[str, object] = ("", None)
    for rung in rungs:
        try:
            plan = Plan(
                network, rung=rung, batch_size=batch_size, optimizer=optimizer, direction=direction
            )
            description = describe(plan)
        except DeviceError as error:
            found.append({"rung": rung, "error": str(error)})
            continue
        same = before[0] if launched(plan) == before[1] else ""
        found.append({**description, "same_plan_as": same})
        before = (rung, launched(plan))
    return found


def measure_ceilings(device: Device, working_sets: Mapping[str, int]) -> dict[str, Any]:
    """How fast the device multiplies, and copies in memory of each of these sizes, at best.

    Raises:
        FindingError: what measures it does not compute what it should.
    """
    from pcnn_cuda.ceilings import measure

    return measure(device, working_sets)


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


def require_memory(network: Network, batch_size: int, dtypes: Sequence[BaselineType]) -> None:
    """Raise unless this machine has the memory for sequential engines of these types side by side.

    Nothing is allocated to find out: a system that promises memory which it lacks ends the process.

    Raises:
        UnavailableError: names the bytes, the layer that takes most, and the largest batch that fits.
    """
    from pcnn_baseline.engine import required_bytes

    def parts(count: int) -> Counter[str]:
        found: Counter[str] = Counter()
        for dtype in dtypes:
            factor = 1 if dtype is np.float32 else COMPARISON_FACTOR
            for name, byte_count in required_bytes(network, count, dtype).items():
                found[name] += round(factor * byte_count)
        return found

    def largest(count: int) -> str:
        return parts(count).most_common(1)[0][0]

    needed, fixed = parts(batch_size).total(), parts(0).total()
    available, total = environment.memory_bytes()
    if needed <= available:
        return
    each = -(-(needed - fixed) // batch_size)  # what is taken grows evenly with the batch
    fits = (available - fixed) // each
    remedy = f"the largest batch_size that fits is {fits}"
    if fits < 1:
        remedy = f"no batch_size fits; make layer {largest(1)} smaller"
    first = largest(batch_size)
    byte_counts = (needed, parts(batch_size)[first], available, total)
    wanted, most, free, machine = (f"{count / MEBIBYTE:,.1f}" for count in byte_counts)
    names = " and ".join(np.dtype(dtype).name for dtype in dtypes)
    raise UnavailableError(
        f"out of memory: the baseline ({names}) needs {wanted} MiB for batch_size "
        f"{batch_size}, of which layer {first} needs {most}; {free} of {machine} MiB are "
        f"available; {remedy}"
    )


def make_baseline(
    network: Network,
    *,
    batch_size: int,
    optimizer: OptimizerSpec,
    dtype: BaselineType = np.float32,
) -> Engine:
    """The sequential engine.

    Raises:
        UnavailableError: the network does not fit into memory; as ``require_memory``.
    """
    from pcnn_baseline.engine import BaselineEngine

    require_memory(network, batch_size, [dtype])
    return BaselineEngine(network, batch_size=batch_size, optimizer=optimizer, dtype=dtype)


def make_cuda(
    network: Network,
    *,
    batch_size: int,
    optimizer: OptimizerSpec,
    device: Device,
    rung: str,
    direction: Literal["push", "pull"] | None = None,
    history_images: int = 0,
    keeps_data: bool | None = None,
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
        keeps_data=keeps_data,
    )


def prefetch(
    networks: Sequence[Network],
    batch_sizes: Sequence[int],
    *,
    device: Device,
    rung: str,
    optimizer: OptimizerSpec,
) -> None:
    """Compile what these networks need, side by side, before engines for these batches are made one by one.

    Raises:
        DeviceError: a kernel does not compile.
    """
    from pcnn_cuda.engine import sources_of
    from pcnn_cuda.plan import Plan

    plans = [
        Plan(network, rung=rung, batch_size=size, optimizer=optimizer, direction=direction)
        for network, size in zip(networks, batch_sizes, strict=True)
        for direction in DIRECTIONS
    ]
    device.prefetch(sources_of(plans))


def kernel_names(rung: str) -> list[str]:
    """Every kernel that a rung can launch."""
    from pcnn_cuda.ladder import kernels_of

    return kernels_of(rung)


def cuda_diagnosis() -> list[dict[str, str]]:
    """What the machine has and lacks for the CUDA engine: name, status, found, remedy."""
    from pcnn_cuda import diagnosis

    return diagnosis.diagnose()


def keeps_data(rung: str) -> bool:
    """Whether engines of this rung keep the training set on the device."""
    from pcnn_cuda.ladder import HOST_DATA

    return rung not in HOST_DATA
