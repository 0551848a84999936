"""The house keeps its shape: one stem in every place, imports in one direction, nothing that shadows other packages."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pcnn_baseline.layers import LAYERS as BASELINE_LAYERS
from pcnn_baseline.layers import LOSSES as BASELINE_LOSSES
from pcnn_bench.engines import rungs
from pcnn_bench.layers import LOSSES, SPECS
from pcnn_cuda.ladder import LAYERS as CUDA_LAYERS
from pcnn_cuda.ladder import RUNGS
from pcnn_cuda.launch import kernel_sources, kernel_text, repeats_bitwise, signatures
from pcnn_cuda.sgd import Sgd

ROOT = Path(__file__).resolve().parent.parent
STEMS = [*SPECS, *LOSSES]
SHARED = ("layers", "optimizers", "network", "engine", "clocks", "environment", "errors")
"""What of ``pcnn_bench`` the engines may import; CONTRIBUTING.md says so too."""
WITH_NUMPY = (
    "datasets/", "figures/", "network", "engine", "engines", "training", "running", "verify",
    "tolerances", "stats", "pairing", "doctor",
)  # fmt: skip
"""The modules of ``pcnn_bench`` that may import NumPy; CONTRIBUTING.md says so too."""
HEADER_WORDS = ("Computes", "Shapes", "Launch", "Traffic", "Limits", "Repeats", "Reference", "Idea")


def _is_type_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: imports for the type checker alone are left out."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not _is_type_only(child):
            yield from _walk(child)


def _imports(path: Path) -> Iterator[str]:
    for node in _walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def test_cuda_and_baseline_are_no_packages() -> None:
    assert not (ROOT / "cuda" / "__init__.py").exists()
    assert not (ROOT / "baseline" / "__init__.py").exists()


def test_every_layer_is_in_every_table() -> None:
    assert set(STEMS) == {*BASELINE_LAYERS, *BASELINE_LOSSES} == set(CUDA_LAYERS)


@pytest.mark.parametrize("stem", STEMS)
def test_every_layer_has_its_files(stem: str) -> None:
    assert (ROOT / "pcnn_bench" / "layers" / f"{stem}.py").is_file()
    assert (ROOT / "baseline" / "pcnn_baseline" / f"{stem}.py").is_file()
    assert (ROOT / "cuda" / "pcnn_cuda" / f"{stem}.py").is_file()
    assert CUDA_LAYERS[stem].is_view or (ROOT / "cuda" / "pcnn_cuda" / f"{stem}.cu").is_file()


@pytest.mark.parametrize("source", kernel_sources())
def test_every_kernel_source_states_its_contract(source: str) -> None:
    text = kernel_text(source)
    stem = source.removesuffix(".cu")
    assert text.startswith(f"// {source} - ")
    header = [line[3:] for line in text.splitlines() if line.startswith("// ")]
    words = [line.split()[0] for line in header if line.split()[0] in HEADER_WORDS]
    assert tuple(dict.fromkeys(words)) == HEADER_WORDS
    assert all(name.startswith(f"{stem}_") for name in signatures(text))
    reference = next(line.split()[1] for line in header if line.startswith("Reference"))
    assert (ROOT / reference.rstrip(",")).is_file() or (source, reference) == ("stall.cu", "none:")


@pytest.mark.parametrize("rung", rungs())
def test_every_rung_repeats_bit_for_bit_as_the_config_promises(rung: str) -> None:
    # one that does not must first make training.deterministic choose something else
    sources = {f"{op.stem}.cu" for _, op in RUNGS[rung] if not op.is_view} | {Sgd.source}
    assert all(repeats_bitwise(kernel_text(source)) for source in sources)


@pytest.mark.parametrize("package", ["pcnn_bench", "baseline/pcnn_baseline", "cuda/pcnn_cuda"])
def test_imports_go_one_way(package: str) -> None:
    shared = {"pcnn_bench", *(f"pcnn_bench.{name}" for name in SHARED)}
    for path in (ROOT / package).rglob("*.py"):
        for name in _imports(path):
            top = name.split(".")[0]
            if package == "pcnn_bench" and path.name != "engines.py":
                assert top not in ("pcnn_baseline", "pcnn_cuda"), f"{path}: {name}"
            if package != "pcnn_bench" and top == "pcnn_bench":
                assert any(name == each or name.startswith(f"{each}.") for each in shared), (
                    f"{path}: {name}"
                )
            if top == "pycuda":
                assert path.name == "pycuda_device.py", f"{path}: {name}"


def test_contributing_names_what_may_be_imported() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shared, *_ = SHARED
    assert ", ".join([f"`pcnn_bench.{shared}`", *(f"`{name}`" for name in SHARED[1:])]) in text
    *first, last = (f"`{name}`" for name in WITH_NUMPY)
    assert f"Of `pcnn_bench`, {', '.join(first)} and {last}\nimport NumPy" in text


def test_numpy_stays_where_the_arrays_are() -> None:
    folder = ROOT / "pcnn_bench"
    for path in folder.rglob("*.py"):
        if any(name.split(".")[0] == "numpy" for name in _imports(path)):
            name = path.relative_to(folder).as_posix()
            assert name.removesuffix(".py") in WITH_NUMPY or f"{name.split('/')[0]}/" in WITH_NUMPY


def test_python_files_stay_readable() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for folder in ("pcnn_bench", "baseline", "cuda")
        for path in (ROOT / folder).rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 450
    }
    assert not long


@pytest.mark.parametrize("package", ["pcnn_bench", "baseline/pcnn_baseline", "cuda/pcnn_cuda"])
def test_everything_that_runs_is_in_the_wheel(package: str) -> None:
    """Every folder with Python is a package, and every other file matches what pyproject.toml ships."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shipped = settings["tool"]["setuptools"]["package-data"]
    root = ROOT / package
    patterns = [*shipped["*"], *shipped.get(root.name, [])]
    files = [
        path.relative_to(root)
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert files
    for path in files:
        if path.suffix == ".py":
            assert (root / path.parent / "__init__.py").is_file(), path
        else:
            assert any(path.match(pattern) for pattern in patterns), path
