"""The documents say what the published runs say, and show what the scripts draw."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import block_table
import draw_diagrams
import insert_numbers
import pytest
from published_quantities import UNKNOWN
from synthetic_runs import baseline, cuda, make_run

ROOT = Path(__file__).resolve().parent.parent
STAGES = (("conv2d1", "tanh1", "avgpool2d1"), ("flatten1", "dense1"), ("loss",))
"""Of the synthetic ``fused``: its stages take 1, 2, 3 times ``base_us`` forward, twice that backward."""
HEADER = """<!-- runs
lenet       = one
lenet ring  = pending
other       = two
soon        = pending
-->

"""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs without noise."""
    folder = tmp_path_factory.mktemp("published")
    fused = cuda(rung="fused", stages=STAGES, base_us=8.0, noise=0.0)
    make_run(folder, baseline(noise=0.0), cuda(noise=0.0), fused, name="one")
    make_run(folder, cuda(rung="fused", stages=STAGES, base_us=8.1, noise=0.0), name="two")
    return folder


@pytest.fixture
def document(tmp_path: Path) -> Path:
    return tmp_path / "page.md"


def _shown(document: Path, published: Path, expression: str) -> str:
    document.write_text(f"{HEADER}It is <!--= {expression} -->?<!--/-->.\n", encoding="utf-8")
    result = insert_numbers.rewrite(document, published)
    assert not result.faults
    return result.text.rsplit(f"<!--= {expression} -->", 1)[1].removesuffix("<!--/-->.\n")


def _faults(document: Path, published: Path, text: str, header: str = HEADER) -> list[str]:
    document.write_text(header + text, encoding="utf-8")
    return insert_numbers.rewrite(document, published).faults


def test_documents_hold_the_numbers_of_the_published_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = insert_numbers.main(["--check"])
    assert (code, capsys.readouterr().err) == (0, "")


def test_diagrams_are_what_the_script_draws(capsys: pytest.CaptureFixture[str]) -> None:
    code = draw_diagrams.main(["--check"])
    assert (code, capsys.readouterr().err) == (0, "")


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("step lenet naive", "300 µs"),
        ("step lenet baseline", "3,000 µs"),
        ("step lenet naive in ms", "0.300"),
        ("step lenet baseline / step lenet naive", "10.0x"),
        ("step lenet naive / step other fused", "1.23x†"),
        ("time lenet fused conv2d1..avgpool2d1 forward", "8.00 µs"),
        ("time lenet naive conv2d1..avgpool2d1 forward", "60.0 µs"),  # (1 + 2 + 3) * 10
        ("time lenet naive tanh1 backward", "40.0 µs"),
        ("time lenet naive conv2d1 forward+backward+update", "31.0 µs"),
        ("time lenet fused * forward+backward", "144 µs"),
        ("time lenet fused loss forward of step lenet fused", "10.0 %"),
        ("memory lenet fused parameters", "9.60 kB"),
        ("memory lenet fused parameters / memory lenet naive input", "3.06x"),
        ("memory lenet fused parameters / step lenet fused", "40.0 MB/s"),
        ("accuracy lenet fused", "0.9000"),
        ("verdict step lenet fused vs step lenet naive", "faster"),
        ("verdict step lenet baseline than step lenet naive", "slower than"),
        ("verdict step lenet fused than step other fused", "as fast as"),  # 1.2 % apart
        ("verdict memory lenet fused parameters vs memory lenet naive input", "larger"),
        ("step lenet ring", UNKNOWN),
        ("step lenet naive / step lenet ring", UNKNOWN),
        ("verdict step soon naive vs step lenet naive", UNKNOWN),
        ("source soon", UNKNOWN),
    ],
)
def test_expression(published: Path, document: Path, expression: str, shown: str) -> None:
    assert _shown(document, published, expression) == shown


def test_source_links_to_the_folder(published: Path, document: Path) -> None:
    name, target = _shown(document, published, "source lenet").strip("[)").split("](")
    assert name == "one"
    assert (document.parent / target).samefile(published / "one")


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("step lent naive", "no run is called 'lent'; the document names lenet, other, soon"),
        ("source lent", "no run is called 'lent'"),
        ("step lenet tuned", "run one has no rung 'tuned', but baseline, naive, fused"),
        ("time lenet naive conv2d9 forward", "no layer is called 'conv2d9'"),
        ("time lenet naive conv2d1..tanh7 forward", "no layer is called 'tanh7'"),
        ("time lenet fused conv2d1 forward", "does avgpool2d1, tanh1 too"),
        ("time lenet naive tanh1 update", "naive has no update of tanh1"),
        ("time lenet naive tanh1 upwards", "upwards: phases are forward, backward, update"),
        ("memory lenet naive cache", "no memory of category 'cache'"),
        ("flops lenet naive conv2d1 forward", "not every flop_count is there"),
        ("step lenet naive of memory lenet naive input", "a share is of one unit; found s and B"),
        ("step lenet naive in kB", "a value in s cannot be given in kB"),
        ("verdict step lenet naive vs 3", "s and x cannot be compared"),
        ("verdict step lenet naive", "there is no 'vs' in it"),
        ("stepp lenet naive", "no such quantity"),
        ("", "no such quantity"),
    ],
)
def test_expression_without_a_value_is_one_line(
    published: Path, document: Path, expression: str, fault: str
) -> None:
    (line,) = _faults(document, published, f"Text.\nA <!--={expression}-->1<!--/-->.\n")
    assert line.startswith(f"{document}:9: {expression}")
    assert fault in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("A <!--= step lenet naive -->1.\n", 8, "<!--= has no other half"),
        ("A\n1<!--/--> b\n", 9, "<!--/ has no other half"),
        ("A\n  - <!--= step lenet naive -->1<!--/-->\n", 9, "a line that begins with a comment"),
        ("A <!--! step lenet naive -->\n", 8, "there is no '>' in it"),
    ],
)
def test_fault_of_the_markup(
    published: Path, document: Path, text: str, line: int, fault: str
) -> None:
    (found,) = _faults(document, published, text)
    assert found.startswith(f"{document}:{line}: ")
    assert fault in found


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("lenet = three", "there is no three in"),
        ("lenet: one", "'lenet: one' is not `alias = folder`"),
    ],
)
def test_fault_of_the_header(published: Path, document: Path, line: str, fault: str) -> None:
    (found,) = _faults(document, published, "", f"# Title\n<!-- runs\nother = two\n{line}\n-->\n")
    assert found.startswith(f"{document}:4: ")
    assert fault in found


def test_a_published_run_that_cannot_be_read_in_full_gives_no_number(
    tmp_path: Path, document: Path
) -> None:
    folder = make_run(tmp_path, cuda(noise=0.0), name="one")
    layers = folder / "layers.csv"
    layers.write_text(layers.read_text().replace("gpu,naive,tanh1,tanh1,op,,forward,64", "gpu"))
    (fault,) = _faults(
        document, tmp_path, "A <!--= step a naive -->1<!--/-->", "<!-- runs\na = one\n-->\n"
    )
    assert "layers.csv" in fault


def test_a_rung_that_did_not_end_well_gives_no_number(tmp_path: Path, document: Path) -> None:
    make_run(tmp_path, cuda(status="diverged"), name="one")
    make_run(tmp_path, cuda(stage_status={"tanh1": "mismatch"}), name="two")
    header = "<!-- runs\na = one\nb = two\n-->\n"
    text = "A <!--= step a naive -->1<!--/--> and <!--= step b naive -->1<!--/-->"
    diverged, mismatch = _faults(document, tmp_path, text, header)
    assert "diverged" in diverged
    assert "a row of naive is not ok" in mismatch


def test_check_finds_an_altered_number_and_writing_mends_it(
    published: Path, document: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(document), "--published", str(published)]
    document.write_text(
        f"{HEADER}A step takes <!--= step lenet naive -->3 µs<!--/-->.\n", encoding="utf-8"
    )
    assert insert_numbers.main([*command, "--check"]) == 1
    assert capsys.readouterr().err.startswith(f"{document}:8: not what the runs say")
    assert "3 µs" in document.read_text(encoding="utf-8")
    assert insert_numbers.main(command) == 0
    assert "-->300 µs<!--" in document.read_text(encoding="utf-8")
    assert insert_numbers.main([*command, "--check"]) == 0


def test_a_claim_that_no_longer_holds_is_found(
    published: Path, document: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = (
        "step lenet fused < step lenet naive", "step lenet naive > step lenet baseline",
        "step lenet fused / step lenet naive < 0.3", "step lenet fused < step other fused",
        "step lenet ring < step lenet fused",
    )  # fmt: skip
    document.write_text(
        HEADER + "".join(f"<!--! {claim} -->\n" for claim in claims), encoding="utf-8"
    )
    assert insert_numbers.main([str(document), "--published", str(published), "--check"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{document}:9: no longer so: {claims[1]}",
        f"{document}:10: no longer so: {claims[2]}",
        f"{document}:11: no longer so: {claims[3]}",  # about equal
    ]


def test_nothing_is_written_while_an_expression_has_no_value(
    published: Path, document: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"{HEADER}A <!--= step lenet naive -->3<!--/--> b <!--= step lenet tuned -->3<!--/-->\n"
    document.write_text(text, encoding="utf-8")
    assert insert_numbers.main([str(document), "--published", str(published)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert document.read_text(encoding="utf-8") == text


def test_an_altered_diagram_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(draw_diagrams, "FOLDER", tmp_path / "figures")
    assert draw_diagrams.main([]) == 0
    assert draw_diagrams.main(["--check"]) == 0
    drawn = tmp_path / "figures" / "naive.svg"
    drawn.write_text(
        drawn.read_text(encoding="utf-8").replace("thread 0", "thread 7"), encoding="utf-8"
    )
    assert draw_diagrams.main(["--check"]) == 1
    assert str(drawn) in capsys.readouterr().err


@pytest.mark.parametrize("draw", draw_diagrams.DIAGRAMS, ids=lambda draw: str(draw.__name__))
def test_diagram_can_be_read_in_every_way(draw: object) -> None:
    """It has a title and a description, keeps inside its frame, and suits light and dark."""
    assert callable(draw)
    text = draw().svg()
    name = "{http://www.w3.org/2000/svg}"
    root = ElementTree.fromstring(text)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    assert root.findtext(f"{name}title")
    assert root.findtext(f"{name}desc")
    assert "prefers-color-scheme:dark" in text
    for each in root.iter(f"{name}text"):
        letters = 6.6 * len(each.text or "")  # of a 13 px sans-serif, about
        x, style = float(each.attrib["x"]), each.attrib.get("class", "").split()
        left = x - letters * ("middle" in style) / 2 - letters * ("end" in style)
        assert left > 0, each.text
        assert left + letters < width, each.text
        assert 12 < float(each.attrib["y"]) < height - 3, each.text


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_links_of_a_document_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for words, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        other = path.parent / file if file else path
        assert words, target
        assert other.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", other.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [
                re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads
            ]


def test_the_page_of_blocks_is_that_of_the_published_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert block_table.main(is_check=True) == 0
    altered = tmp_path / "blocks.md"
    altered.write_text(block_table.PAGE.read_text().replace("| push |", "| pull |", 1))
    monkeypatch.setattr(block_table, "PAGE", altered)
    assert block_table.main(is_check=True) == 1
    assert "run python docs/block_table.py" in capsys.readouterr().err


def test_a_reason_names_the_counters_that_favour_the_winner_first() -> None:
    winner = {"l2_bytes": "50", "shared_bank_conflicts": "300", "occupancy_percent": "20.1"}
    loser = {"l2_bytes": "100", "shared_bank_conflicts": "100", "occupancy_percent": "20"}
    found = block_table._why(winner, loser)
    assert found == "L2 traffic 0.50x; despite bank conflicts 3.00x"
    assert block_table._why(loser, loser) == "no counter by a tenth"
