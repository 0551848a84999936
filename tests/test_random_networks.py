"""Random networks: what is drawn, that every rung is right on them, and what a mismatch says."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pcnn_bench import engines
from pcnn_bench.awkward import ACTIVATIONS, AFTER_CONVOLUTION, Case
from pcnn_bench.cli import exit_code_of
from pcnn_bench.config import parse_config
from pcnn_bench.layers import LOSSES
from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_bench.layers.pooling import PoolingSpec
from pcnn_bench.network import Network
from pcnn_bench.random_networks import MAX_KERNEL, as_config
from pcnn_bench.results import CheckRow
from pcnn_bench.verify import Verification, random_cases, verify
from pcnn_bench.verify_report import print_verification, summarise_verification
from pcnn_cuda.emulated_device import EmulatedDevice
from pcnn_cuda.launch import kernel_text

QUICKSTART = str(Path(__file__).resolve().parent.parent / "configs" / "quickstart.yaml")
MANY = random_cases(400, 0)


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    device = EmulatedDevice()
    yield device
    device.close()


def _convolutions() -> list[Conv2dSpec]:
    return [spec for case in MANY for spec in case.specs if isinstance(spec, Conv2dSpec)]


def test_a_seed_gives_the_same_network_wherever_one_begins() -> None:
    assert random_cases(3, 17) == random_cases(5, 15)[2:]
    assert [case.seed for case in random_cases(3, 17)] == [17, 18, 19]
    assert len({case.x_shape for case in MANY}) > 300


def test_every_kind_of_block_is_drawn() -> None:
    runs = set()
    for case in MANY:
        for place, kind in enumerate(case.kinds):
            if kind == "conv2d":
                after = case.kinds[place + 1 :]
                length = next(
                    count for count, each in enumerate(after) if each in ("conv2d", "flatten")
                )
                runs.add(after[:length])
    assert runs == {(), *AFTER_CONVOLUTION}
    assert {case.kinds[-1] for case in MANY} == set(LOSSES)
    assert {case.kinds.count("conv2d") for case in MANY} == {1, 2}
    dense_pairs = {
        case.kinds[place + 1]
        for case in MANY
        for place, kind in enumerate(case.kinds)
        if kind == "dense"
    }
    assert dense_pairs >= {*ACTIVATIONS, "dense", *LOSSES}


def test_windows_strides_paddings_and_batches_are_all_drawn() -> None:
    assert {edge for conv in _convolutions() for edge in conv.kernel} == set(
        range(1, MAX_KERNEL + 1)
    )
    assert {edge for conv in _convolutions() for edge in conv.stride} == {1, 2, 3}
    assert {edge for conv in _convolutions() for edge in conv.padding} == {0, 1, 2, 3}
    assert any(conv.kernel[0] != conv.kernel[1] for conv in _convolutions())
    pools = [spec for case in MANY for spec in case.specs if isinstance(spec, PoolingSpec)]
    overlaps = {(pool.size[0] > pool.stride[0]) - (pool.size[0] < pool.stride[0]) for pool in pools}
    assert overlaps == {1, 0, -1}  # windows overlap, meet, and leave gaps
    assert {case.n for case in MANY} == {1, 2, 3, 4, 5}
    assert {case.n + case.spare >= 256 for case in MANY} == {True, False}


@pytest.mark.parametrize("case", MANY[:20], ids=lambda case: str(case.seed))
def test_a_network_becomes_a_config_that_gives_it_again(case: Case) -> None:
    config = parse_config(as_config(case), "random.yaml")
    network = config.build_network()
    assert tuple(layer.spec for layer in network.all_layers) == case.specs
    assert network.input_shape == case.x_shape
    assert config.training.batch_size == case.n


@pytest.mark.slow
@pytest.mark.parametrize("rung", engines.rungs())
def test_every_rung_is_right_on_random_networks(device: EmulatedDevice, rung: str) -> None:
    cases = random_cases(4, 100)
    found = verify(None, device=device, rung=rung, cases=[], random=cases)
    assert not found.mismatches
    assert [case for case, _ in found.random] == cases
    assert all(rows for _, rows in found.random)
    assert (found.rows, found.case_count) == ([], 0)


def test_a_mismatch_has_its_seed_and_its_config_and_comes_again() -> None:
    text = kernel_text("mean_squared_error.cu")
    planted = text.replace("= sum / K", "= 2 * sum / K")
    assert planted != text
    device = EmulatedDevice(sources={"mean_squared_error.cu": planted})
    cases = [case for case in MANY if case.kinds.count("conv2d") == 1][:4]
    wrong = [case for case in cases if case.kinds[-1] == "mean_squared_error"]
    assert 0 < len(wrong) < len(cases)
    try:
        found = verify(None, device=device, rung="naive", cases=[], random=cases)
        again = verify(None, device=device, rung="naive", cases=[], random=wrong[:1])
    finally:
        device.close()
    assert found.failed == wrong
    assert not found.is_good
    seed = wrong[0].seed
    first = [row for case, rows in found.random if case.seed == seed for row in rows]
    assert [row for _, rows in again.random for row in rows] == first  # to the last bit
    summary = summarise_verification([("naive", found), ("naive", again)], "emulated")
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert {each["seed"] for each in summary["rungs"][0]["mismatches"]} == {
        case.seed for case in wrong
    }
    assert summary["configs"].keys() == {str(case.seed) for case in wrong}
    stream = io.StringIO()
    print_verification(summary, stream)
    shown = stream.getvalue()
    assert f"random network of seed {seed}: loss losses {wrong[0].n}: off by" in shown
    assert shown.count(f"again with --random 1 --seed {seed}:") == 1
    assert as_config(wrong[0]) in shown
    assert f"0 shapes and {len(cases)} random networks" in shown


def _row(status: str) -> CheckRow:
    return CheckRow("cuda", "emulated", "naive", "loss", "losses", "3", 0.5, 0.1, status)


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("mismatch", 1)])
def test_the_command_draws_as_many_as_asked_from_the_seed(
    status: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Device:
        kind = "emulated"

        def close(self) -> None: ...

    def fake(network: Network, *, random: list[Case], **given: object) -> Verification:
        return Verification(
            [_row("ok")], 1, ("k",), random=[(case, [_row(status)]) for case in random]
        )

    monkeypatch.setattr("pcnn_bench.engines.open_device", lambda *args, **given: Device())
    monkeypatch.setattr("pcnn_bench.verify.verify", fake)
    argv = ("verify", QUICKSTART, "--rung", "naive", "--random", "2", "--seed", "41")
    assert exit_code_of(argv) == code
    captured = capsys.readouterr()
    assert "1 shapes and 2 random networks, 3 comparisons" in captured.out
    assert ("name: random-42" in captured.out) is (code == 1)
    assert captured.err.count("\n") == code


@pytest.mark.parametrize("argv", [("--random", "-1"), ("--random", "many"), ("--seed", "-1")])
def test_a_wrong_count_or_seed_is_one_line(
    argv: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(("verify", QUICKSTART, *argv)) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_random_network_of_which_nothing_was_compared_is_not_good() -> None:
    good = Verification([_row("ok")], 1, ("k",), random=[(MANY[0], [_row("ok")])])
    assert good.is_good
    assert good.comparison_count == 2
    assert not Verification([_row("ok")], 1, ("k",), random=[(MANY[0], [])]).is_good
