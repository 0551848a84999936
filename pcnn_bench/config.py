"""The config (schema 1): its models, reading and writing; ``config_errors`` words the errors."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from functools import reduce
from io import StringIO
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from ruamel.yaml import YAML

from pcnn_bench.config_errors import describe_errors
from pcnn_bench.config_overrides import apply_override
from pcnn_bench.datasets.catalog import CATALOG
from pcnn_bench.errors import ConfigError
from pcnn_bench.layers import LOSSES, SPECS, LayerSpec
from pcnn_bench.layers.base import PositiveInt, Strict
from pcnn_bench.network import Network, NetworkError
from pcnn_bench.optimizers import OptimizerSpec
from pcnn_bench.suggest import nearest
from pcnn_bench.yaml_source import KeyPath, format_path, read_yaml

SCHEMA_VERSION = 1
# The shipped configs take under 4 KiB; the parser needs about a second for 64 KiB.
MAX_FILE_BYTES = 64 * 1024
_SUFFIXES = (".yaml", ".yml")

if TYPE_CHECKING:
    AnyLayer = LayerSpec
    LossName = str
    SetName = str
else:
    AnyLayer = Annotated[reduce(or_, SPECS.values()), Field(discriminator="kind")]
    LossName = Literal[tuple(LOSSES)]
    SetName = Literal[tuple(CATALOG)]


def _to_tuple(value: Any) -> Any:
    """A YAML list, as strict validation wants it; anything else is left for pydantic to refuse."""
    return tuple(value) if isinstance(value, list) else value


def _without_repeats(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("a name stands twice; keep one of them")
    return names


def _known_schema(version: int) -> int:
    if version != SCHEMA_VERSION:
        raise ValueError(f"this program reads schema {SCHEMA_VERSION}")
    return version


FromList = BeforeValidator(_to_tuple)
FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=64)]
"""Usable as the name of a folder, or as a part of one."""
PositiveFloat = Annotated[float, Field(gt=0)]
MAX_EPOCHS = MAX_COUNT = 10**6
MAX_SECONDS = 1e6
"""More than any experiment takes (11 days): beyond is a slip, which would only show by never ending."""


class DataConfig(Strict):
    """Which images; null counts mean all of them.

    A relative ``folder`` is taken from the working directory.
    """

    set: Annotated[SetName, Field(examples=["mnist-5k"])]
    folder: Annotated[str, Field(min_length=1)] | None = None
    train_count: PositiveInt | None = None
    test_count: PositiveInt | None = None
    transpose: bool = False


class NetworkConfig(Strict):
    """The layers in order; ``input`` is (C, H, W)."""

    input: Annotated[
        tuple[PositiveInt, PositiveInt, PositiveInt], FromList, Field(examples=["[1, 28, 28]"])
    ]
    layers: Annotated[tuple[AnyLayer, ...], FromList, Field(min_length=1)]
    loss: LossName = "softmax_cross_entropy"


class TrainingConfig(Strict):
    """What both engines do alike.

    ``deterministic`` demands runs that repeat bit for bit. Every rung built so far does that anyway
    (``pcnn-bench show`` says so), so that true and false run the same.
    """

    epochs: Annotated[PositiveInt, Field(le=MAX_EPOCHS, examples=[5])]
    batch_size: Annotated[PositiveInt, Field(examples=[64])]
    # NumPy takes larger seeds; other readers of the stored config need not.
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    deterministic: bool = False
    optimizer: Annotated[OptimizerSpec, Field(examples=["{kind: sgd, learning_rate: 0.05}"])]


class CudaConfig(Strict):
    """How the CUDA engine runs layers that say nothing themselves.

    A null ``rung`` is the highest one that is built, a null ``backward`` the direction that the rung prefers.
    """

    rung: str | None = None
    backward: Literal["push", "pull"] | None = None
    nvcc_flags: Annotated[tuple[str, ...], FromList] = ()


class TimingConfig(Strict):
    """When the timing pass has seen enough.

    That is once the spread is down to ``target_relative_mad`` of the median, or ``budget_s``
    seconds are spent.
    """

    warmup_s: Annotated[float, Field(ge=0, le=MAX_SECONDS)] = 0.2
    warmup_count: Annotated[PositiveInt, Field(le=MAX_COUNT)] = 5
    target_relative_mad: PositiveFloat = 0.01
    budget_s: Annotated[PositiveFloat, Field(le=MAX_SECONDS)] = 10.0
    cache: Literal["warm"] = "warm"


class Config(Strict):
    """One experiment, complete: the same config runs the same way again."""

    schema_version: Annotated[
        int, AfterValidator(_known_schema), Field(alias="schema", examples=[SCHEMA_VERSION])
    ]
    name: Annotated[FolderName, Field(examples=["my-network"])]
    data: Annotated[DataConfig, Field(examples=["{set: mnist-5k}"])]
    network: NetworkConfig
    training: TrainingConfig
    engines: Annotated[
        tuple[Literal["baseline", "cuda"], ...],
        FromList,
        Field(min_length=1),
        AfterValidator(_without_repeats),
    ] = ("baseline", "cuda")
    cuda: CudaConfig = CudaConfig()
    timing: TimingConfig = TimingConfig()

    def build_network(self) -> Network:
        """The network with its shapes.

        Raises:
            NetworkError: a layer does not fit; never for a config that this module has read.
        """
        loss = LOSSES[self.network.loss](kind=self.network.loss)
        return Network(self.network.input, self.network.layers, loss)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file; ``overrides`` (``training.epochs=3``) replace parts of it, later ones win.

    Raises:
        ConfigError: the file cannot be read, or is wrong; then each line is one error,
            ``file:line:column: path: what was found; what would do``.
    """
    return parse_config(_read_text(path), str(path), overrides)


def parse_config(text: str, source_name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a config from text; ``source_name`` stands for the file in errors.

    Raises:
        ConfigError: as ``load_config``.
    """
    document = read_yaml(text, lambda line, column: f"{source_name}:{line}:{column}")
    if document.root is None:
        raise ConfigError(
            f"{document.place(())}: the file is empty; start from one of the files in configs/"
        )
    if not isinstance(document.root, dict):
        raise ConfigError(
            f"{document.place(())}: the file must hold keys such as 'schema: 1', not a "
            f"{'list' if isinstance(document.root, list) else 'single value'}; "
            "start from one of the files in configs/"
        )
    for override in overrides:
        apply_override(document, override)
    try:
        config = Config.model_validate(document.root)
    except ValidationError as error:
        raise ConfigError(describe_errors(error, document, Config)) from error
    try:
        config.build_network()
    except NetworkError as error:
        index = error.layer_index
        where: KeyPath = ("network", "loss") if index is None else ("network", "layers", index)
        # A layer that fits as the file has it may not fit what was set elsewhere in the network.
        place = document.replaced(where) or document.replaced(("network",)) or document.place(where)
        raise ConfigError(f"{place}: {format_path(where)}: {error}") from error
    return config


def dump_config(config: Config) -> str:
    """The whole config as YAML, defaults written out; reading it gives an equal config."""
    content = config.model_dump(mode="json", by_alias=True)
    layers = content["network"]["layers"]
    content["network"]["layers"] = [
        {key: value for key, value in layer.items() if value is not None} for layer in layers
    ]
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None  # what holds scalars alone goes on one line
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # inferred from None
    yaml.width = 2**16  # however long the line
    text = StringIO()
    yaml.dump(content, text)
    return text.getvalue()


def _read_text(path: str | Path) -> str:
    """The text of a config file, without its byte order mark."""
    try:
        # a pipe would be waited for, so only what is a file is opened
        if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode):
            raise ConfigError(f"{path}: is a pipe or a device, not a file; give a config file")
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file{_similar_file(Path(path))}") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path}: found a folder; give a config file in it") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read ({reason}); give a config file") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES // 1024} KiB; give a config file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
        raise ConfigError(
            f"{path}:{line}:{column}: found the byte 0x{data[error.start]:02X}, not UTF-8 text; "
            "save the file as UTF-8"
        ) from error


def _similar_file(path: Path) -> str:
    """What to try instead of a path that is not there."""
    try:
        present = sorted(file.name for file in path.parent.iterdir() if file.suffix in _SUFFIXES)
    except OSError:
        return f"; there is no folder {path.parent} either"
    near = nearest(path.name, present)
    if near:
        return f"; did you mean {path.with_name(near)}?"
    return f"; {path.parent} holds {', '.join(present)}" if present else "; give a config file"
