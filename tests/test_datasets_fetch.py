"""Fetching from a server of our own: good and bad mirrors, and what is left behind."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pooch
import pytest
from dataset_files import IDX_NAMES, idx_set, isolated, load

from pcnn_bench.datasets import fetch, where
from pcnn_bench.datasets.catalog import CATALOG, Download
from pcnn_bench.errors import ConfigError, DataError


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data sets."""
    return isolated(tmp_path, monkeypatch)


class Server:
    """Serves ``files`` by path; a path in ``cut`` announces more bytes than it sends."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: set[str] = set()
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                data = server.files.get(self.path)
                if data is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                extra = 1000 if self.path in server.cut else 0
                self.send_header("Content-Length", str(len(data) + extra))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Keep the tests quiet."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    thread = threading.Thread(target=running.http.serve_forever, args=(0.01,))
    thread.start()
    yield running
    running.http.shutdown()
    running.http.server_close()
    thread.join()


@pytest.fixture
def mnist(nowhere: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A small MNIST that only the second mirror has, under /good."""
    names = tuple(f"{name}.gz" for name in IDX_NAMES)
    idx_set(nowhere / "made", names, pack=True)
    downloads = []
    for name in names:
        data = (nowhere / "made" / name).read_bytes()
        server.files[f"/good/{name}"] = data
        urls = (f"{server.url}/bad/{name}", f"{server.url}/good/{name}")
        downloads.append(Download(name, hashlib.sha256(data).hexdigest(), urls))
    monkeypatch.setitem(CATALOG, "mnist", replace(CATALOG["mnist"], downloads=tuple(downloads)))
    return server


def cache(parent: Path) -> Path:
    return parent / "cache" / "pcnn-bench" / "data"


def left_in_cache(parent: Path) -> list[str]:
    return sorted(path.name for path in cache(parent).rglob("*"))


def test_the_second_mirror_is_asked_when_the_first_fails(nowhere: Path, mnist: Server) -> None:
    said: list[str] = []
    assert fetch("mnist", said.append) == cache(nowhere) / "mnist"
    assert said[:2] == [f"downloading {mnist.url}/{at}/{IDX_NAMES[0]}.gz" for at in ("bad", "good")]
    assert load("mnist").folder == cache(nowhere) / "mnist"
    assert (cache(nowhere) / "mnist", True) in where("mnist")
    assert left_in_cache(nowhere) == sorted(
        ["SHA256SUMS", "mnist", *(f"{n}.gz" for n in IDX_NAMES)]
    )


def test_what_is_there_intact_is_not_downloaded_again(nowhere: Path, mnist: Server) -> None:
    fetch("mnist")
    mnist.asked.clear()
    assert fetch("mnist") == cache(nowhere) / "mnist"
    assert mnist.asked == []


def test_what_is_damaged_or_gone_is_downloaded_again(nowhere: Path, mnist: Server) -> None:
    folder = fetch("mnist")
    whole = load("mnist").sha256
    (folder / f"{IDX_NAMES[0]}.gz").write_bytes(b"damaged")
    (folder / f"{IDX_NAMES[1]}.gz").unlink()
    fetch("mnist")
    assert load("mnist").sha256 == whole


def test_when_both_mirrors_fail_one_line_names_them_and_nothing_is_left(
    nowhere: Path, mnist: Server
) -> None:
    name = f"{IDX_NAMES[2]}.gz"
    del mnist.files[f"/good/{name}"]
    with pytest.raises(DataError) as caught:
        fetch("mnist")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{name}: cannot be downloaded (")
    assert f"{mnist.url}/bad/{name}: HTTP 404; {mnist.url}/good/{name}: HTTP 404" in message
    assert "data.folder" in message
    assert left_in_cache(nowhere) == []


def test_a_file_with_another_sum_is_refused_and_nothing_is_left(
    nowhere: Path, mnist: Server
) -> None:
    mnist.files[f"/good/{IDX_NAMES[0]}.gz"] += b"x"
    with pytest.raises(DataError, match="sent a file with another SHA-256"):
        fetch("mnist")
    assert left_in_cache(nowhere) == []


def test_a_download_that_breaks_off_leaves_nothing_half(nowhere: Path, mnist: Server) -> None:
    mnist.cut.add(f"/good/{IDX_NAMES[3]}.gz")
    with pytest.raises(DataError, match=rf"{IDX_NAMES[3]}\.gz: cannot be downloaded"):
        fetch("mnist")
    assert left_in_cache(nowhere) == []


def test_an_interruption_leaves_nothing_half(
    nowhere: Path, mnist: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    retrieve = pooch.retrieve

    def interrupted(url: str, known_hash: str, file: str, folder: Path) -> str:
        if file.startswith("t10k"):
            (folder / "half").write_bytes(b"half")
            raise KeyboardInterrupt
        return str(retrieve(url, known_hash, file, folder))

    monkeypatch.setattr(pooch, "retrieve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch("mnist")
    assert left_in_cache(nowhere) == []


def test_no_server_at_all_is_one_line(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # port 9 (discard) of this machine has no listener in any sane set-up
    download = Download("file.gz", "0" * 64, ("http://127.0.0.1:9/file.gz",))
    monkeypatch.setitem(CATALOG, "mnist", replace(CATALOG["mnist"], downloads=(download,)))
    with pytest.raises(
        DataError, match=r"file\.gz: .*127\.0\.0\.1:9/file\.gz: ConnectionError"
    ) as e:
        fetch("mnist")
    assert "\n" not in str(e.value)


def test_a_cache_that_cannot_be_written_is_one_line(nowhere: Path, mnist: Server) -> None:
    (nowhere / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"mnist: cannot be written .* data.folder"):
        fetch("mnist")


def archive(kind: str, members: dict[str, bytes]) -> bytes:
    """A zip or tar.gz of the members."""
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w") as pack:
            for name, data in members.items():
                pack.writestr(name, data)
    else:
        with tarfile.open(fileobj=stream, mode="w:gz") as tar:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


@pytest.mark.parametrize(("set_name", "kind"), [("emnist-letters", "zip"), ("cifar-10", "tar.gz")])
def test_the_wanted_members_of_an_archive_are_kept_and_the_archive_is_not(
    nowhere: Path, server: Server, monkeypatch: pytest.MonkeyPatch, set_name: str, kind: str
) -> None:
    (published,) = CATALOG[set_name].downloads
    members = {name: name.encode() for name in published.members}
    data = archive(kind, members | {"other/readme.txt": b"not wanted"})
    server.files["/archive"] = data
    download = replace(
        published, sha256=hashlib.sha256(data).hexdigest(), urls=(f"{server.url}/archive",)
    )
    monkeypatch.setitem(CATALOG, set_name, replace(CATALOG[set_name], downloads=(download,)))
    folder = fetch(set_name)
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert kept.pop("SHA256SUMS")
    assert kept == {name.rsplit("/", 1)[1]: data for name, data in members.items()}
    assert (folder, True) in where(set_name)
    assert left_in_cache(nowhere) == sorted([set_name, "SHA256SUMS", *kept])


@pytest.mark.parametrize("set_name", ["mnist-5k", "synthetic"])
def test_a_set_without_a_download_is_an_error_of_the_command_line(set_name: str) -> None:
    with pytest.raises(ConfigError, match="there is nothing to download"):
        fetch(set_name)


def test_every_published_download_has_two_mirrors_and_a_sha_256() -> None:
    downloads = [download for entry in CATALOG.values() for download in entry.downloads]
    assert len(downloads) == 4 + 4 + 6 + 1
    for download in downloads:
        assert len(set(download.urls)) == 2
        assert len(bytes.fromhex(download.sha256)) == 32
