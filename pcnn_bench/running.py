"""One run, of one rung of engine cuda or of several side by side: everything that its steps need, and its end."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import pcnn_bench.engines as packages
from pcnn_bench import __version__, environment
from pcnn_bench.config import dump_config
from pcnn_bench.datasets import load_dataset
from pcnn_bench.errors import ConfigError, PcnnError
from pcnn_bench.job import Job, RunResult
from pcnn_bench.progress import showing
from pcnn_bench.results import RunFolder
from pcnn_bench.training import Images

__all__ = ["RunResult", "run", "without_folders"]

if TYPE_CHECKING:
    from pcnn_bench.config import Config
    from pcnn_cuda.device import Device


def run(
    config: Config,
    *,
    device: str = "auto",
    engines: Sequence[str] | None = None,
    rung: str | None = None,
    rungs: Sequence[str] | None = None,
    output: Path = Path("results"),
    quiet: bool = False,
    argv: Sequence[str] = (),
    with_host: bool = False,
    say: Callable[[str], None] | None = None,
) -> RunResult:
    """Train, check and time every engine of ``config``; write one run folder inside ``output``.

    Whatever ends the run early, the folder keeps what there was and says what it is.

    Args:
        config: What to run; ``engines`` and ``rung`` replace what it says.
        rungs: Makes it a ladder: these rungs, or for ``()`` all that are built, take turns, each for the whole network,
            and the device's ceilings are measured. What layers choose themselves is ignored, ``backward`` apart.
        device: ``auto``, ``gpu``, ``gpu:N`` or ``emulated``; not looked at without engine ``cuda``.
        output: The parent of the run folder; made if missing.
        quiet: No progress on stderr.
        argv: The command line, for ``run.json``; paths in it are cut to their last part.
        with_host: Whether ``environment.json`` names the host.
        say: Takes lines that the person must see; they go to stderr otherwise.

    Raises:
        FindingError: a result or a loss differs from the baseline's, or a training diverged.
        ConfigError: an engine or a rung is unknown.
        UnavailableError: data, device, folder or disk are unusable.
    """
    config = _with_engines(config, engines)
    ignored: list[str] = []
    if rungs is None:
        config = _with_rung(config, rung)
    else:
        config, ignored = _without_rungs(config)
        rungs = packages.check_ladder(rungs, "--rungs")
    network = config.build_network()
    # float64 is what all results are compared with
    dtypes: list[packages.BaselineType] = [np.float32, np.float64]
    packages.require_memory(network, 1, dtypes)  # before parameters are drawn or data loaded
    with ExitStack() as stack:
        progress = stack.enter_context(showing(quiet))
        say = say or progress.say
        if ignored:
            say(f"a ladder runs each rung as a whole: {', '.join(ignored)} ignored")
        blas = stack.enter_context(packages.one_blas_thread())
        progress.activity("loading data")
        dataset = load_dataset(
            config.data.set,
            folder=Path(config.data.folder) if config.data.folder else None,
            train_count=config.data.train_count,
            test_count=config.data.test_count,
            transpose=config.data.transpose,
            input_shape=config.network.input,
            seed=config.training.seed,
            class_count=network.output_shape[0],
        )
        images = Images.of(dataset)
        most = images.largest_batch(config.training.batch_size)
        packages.require_memory(network, most, dtypes)
        opened: Device | None = None
        if "cuda" in config.engines:
            opened = packages.open_device(device, nvcc_flags=config.cuda.nvcc_flags, say=say)
            stack.callback(opened.close)
        description = opened.describe() if opened else None
        commit = environment.commit()
        started = datetime.now(UTC)
        name = f"{started:%Y%m%dT%H%M%SZ}-{config.name}-{commit or __version__}"
        folder = RunFolder.create(output, name)
        facts = {
            "argv": [without_folders(word) for word in argv],
            "started_utc": started.isoformat(timespec="seconds"),
            "package_version": __version__,
            "commit": commit,
            "device": opened and {"kind": opened.kind, "name": (description or {}).get("name")},
        }
        climbed = (config.cuda.rung or "",) if rungs is None else rungs
        job = Job(
            config, climbed, dataset, images, opened, folder, progress, facts,
            is_ladder=rungs is not None,
        )  # fmt: skip
        stack.callback(job.close)
        try:
            job.write()
            folder.write_text("config.yaml", dump_config(config))
            folder.write_json(
                "environment.json", environment.collect(description, blas, with_host=with_host)
            )
            job.execute()
        except BaseException as error:
            job.end_early(error)
            if isinstance(error, PcnnError):
                error.folder = folder.path
            if folder.path.is_dir():
                say(f"what there was is kept in {folder.path}")
            raise
        if job.message:
            say(job.message)
        return job.result()


def _with_engines(config: Config, names: Sequence[str] | None) -> Config:
    """The config with these engines instead of its own."""
    if names is None:
        return config
    packages.check_names(names, "--engine")
    return config.model_copy(update={"engines": tuple(names)})


def _with_rung(config: Config, rung: str | None) -> Config:
    """The config with the rung that will run: stored, it runs the same again."""
    if "cuda" not in config.engines:
        if rung is not None:
            raise ConfigError("--rung: concerns engine cuda, which does not run; leave it out")
        return config
    chosen, *_ = packages.check_rungs(config, rung)
    cuda = config.cuda.model_copy(update={"rung": chosen})
    return config.model_copy(update={"cuda": cuda})


def _without_rungs(config: Config) -> tuple[Config, list[str]]:
    """The config whose layers choose no rung, and the keys that did.

    Raises:
        ConfigError: engine cuda does not run, or one of these rungs does not exist.
    """
    if "cuda" not in config.engines:
        raise ConfigError(
            "ladder: engine cuda does not run, and the rungs are its; add --engine cuda"
        )
    packages.check_rungs(config)
    layers, ignored = [], []
    for index, layer in enumerate(config.network.layers):
        if layer.cuda and layer.cuda.rung is not None:
            ignored.append(f"network.layers[{index}].cuda.rung")
            choice = layer.cuda.model_copy(update={"rung": None})
            layer = layer.model_copy(update={"cuda": choice})
        layers.append(layer)
    network = config.network.model_copy(update={"layers": tuple(layers)})
    return config.model_copy(update={"network": network}), ignored


def without_folders(word: str) -> str:
    """A word of the command line without its folders: ``--output=/home/me/x`` -> ``--output=x``."""
    key, equals, value = word.rpartition("=")
    return key + equals + (re.split(r"[/\\]", value.rstrip("/\\"))[-1] or value)
