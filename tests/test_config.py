"""Reading, checking and writing configs: what is right, and what an error says."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pcnn_bench.config import MAX_FILE_BYTES, Config, dump_config, load_config, parse_config
from pcnn_bench.errors import ConfigError
from pcnn_bench.layers import LOSSES, SPECS
from pcnn_bench.layers.base import CudaChoice
from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_bench.layers.maxpool2d import MaxPool2dSpec

CONFIGS = Path(__file__).parent.parent / "configs"

GOOD = """\
schema: 1
name: small
data: {set: mnist-5k}
network:
  input: [1, 28, 28]
  layers:
    - {kind: conv2d, out_channels: 6, kernel: 5, padding: 2}
    - {kind: tanh}
    - {kind: maxpool2d, size: 2}
    - {kind: flatten}
    - {kind: dense, out_features: 10}
training:
  epochs: 5
  batch_size: 64
  deterministic: false
  optimizer: {kind: sgd, learning_rate: 0.05}
engines: [baseline, cuda]
"""
LINE_FORM = re.compile(r"(small\.yaml:\d+:\d+|--set .+): ([\w\[\].]+: )?[^\n]+; [^\n]+")


def parse(old: str = "", new: str = "", *overrides: str) -> Config:
    """The good config with ``old`` replaced by ``new``."""
    assert old in GOOD
    return parse_config(GOOD.replace(old, new, 1), "small.yaml", overrides)


def error_of(old: str = "", new: str = "", *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(old, new, *overrides)
    return str(caught.value)


def error_of_text(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "small.yaml")
    return str(caught.value)


# What a right config means


def test_defaults_are_those_of_the_blueprint() -> None:
    config = parse()
    assert config.schema_version == 1
    assert config.data.model_dump() == {
        "set": "mnist-5k",
        "folder": None,
        "train_count": None,
        "test_count": None,
        "transpose": False,
    }
    assert config.network.loss == "softmax_cross_entropy"
    assert config.training.seed == 0
    assert config.training.deterministic is False
    assert config.training.optimizer.model_dump() == {
        "kind": "sgd",
        "learning_rate": 0.05,
        "momentum": 0.0,
        "weight_decay": 0.0,
    }
    assert config.engines == ("baseline", "cuda")
    assert config.cuda.model_dump() == {"rung": None, "backward": None, "nvcc_flags": ()}
    assert config.timing.model_dump() == {
        "warmup_s": 0.2,
        "warmup_count": 5,
        "target_relative_mad": 0.01,
        "budget_s": 10.0,
        "cache": "warm",
    }


def test_layers_become_their_specs() -> None:
    config = parse("{kind: tanh}", "{kind: conv2d, out_channels: 2, kernel: [3, 1], name: two}")
    first, second, third = config.network.layers[:3]
    assert first == Conv2dSpec(out_channels=6, kernel=(5, 5), padding=(2, 2))
    assert second == Conv2dSpec(out_channels=2, kernel=(3, 1), name="two")
    assert third == MaxPool2dSpec(size=(2, 2), stride=(2, 2))


@pytest.mark.parametrize("kind", SPECS)
def test_every_kind_of_layer_can_be_written(kind: str) -> None:
    needs = {
        "conv2d": ", out_channels: 3, kernel: 1",
        "maxpool2d": ", size: 1",
        "avgpool2d": ", size: 1",
        "dense": ", out_features: 3",
    }.get(kind, "")
    place = "    - {kind: dense" if kind == "dense" else "    - {kind: flatten"
    config = parse(place, f"    - {{kind: {kind}{needs}, name: it}}\n{place}")
    assert [layer.kind for layer in config.network.layers if layer.name == "it"] == [kind]


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_can_be_written(loss: str) -> None:
    config = parse("training:", f"  loss: {loss}\ntraining:")
    network = config.build_network()
    assert network.loss is not None
    assert network.loss.kind == loss


def test_layers_own_cuda_choice_is_kept() -> None:
    config = parse("{kind: tanh}", "{kind: tanh, cuda: {rung: ring, backward: pull}}")
    assert config.network.layers[1].cuda == CudaChoice(rung="ring", backward="pull")


def test_config_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse().training.epochs = 3  # type: ignore[misc]


# YAML 1.2


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-3", 0.001), ("1E-3", 0.001), ("5e4", 5e4), ("+.5", 0.5), ("1", 1.0), ("1e-05", 1e-05)],
)
def test_number_without_a_point_is_a_number(written: str, value: float) -> None:
    config = parse("0.05", written)
    assert config.training.optimizer.learning_rate == value
    assert isinstance(config.training.optimizer.learning_rate, float)


@pytest.mark.parametrize(
    ("written", "value"), [("010", 10), ("08", 8), ("0o17", 15), ("0x1F", 31), ("1_000", 1000)]
)
def test_leading_zero_is_not_octal(written: str, value: int) -> None:
    assert parse("epochs: 5", f"epochs: {written}").training.epochs == value


@pytest.mark.parametrize("word", ["no", "off", "on", "yes", "y", "n", "No", "OFF"])
def test_word_is_text_and_never_a_boolean(word: str) -> None:
    assert parse("name: small", f"name: {word}").name == word
    assert error_of("deterministic: false", f"deterministic: {word}") == (
        f"small.yaml:15:18: training.deterministic: found {word!r}; give true or false"
    )


@pytest.mark.parametrize("text", ["1:30", "2024-01-01", "60:30"])
def test_times_and_dates_are_text(text: str) -> None:
    assert error_of("epochs: 5", f"epochs: {text}") == (
        f"small.yaml:13:11: training.epochs: found {text!r}; give a whole number"
    )


def test_aliases_and_merge_keys_work_and_own_keys_win() -> None:
    config = parse(
        "    - {kind: tanh}\n",
        "    - &c {kind: conv2d, out_channels: 3, kernel: 3, padding: 1}\n"
        "    - *c\n"
        "    - {<<: *c, kernel: 5, padding: 2}\n"
        "    - {<<: [{stride: 2}, *c, {stride: 3}]}\n",
    )
    plain = Conv2dSpec(out_channels=3, kernel=(3, 3), padding=(1, 1))
    assert config.network.layers[1:5] == (
        plain,
        plain,
        Conv2dSpec(out_channels=3, kernel=(5, 5), padding=(2, 2)),
        Conv2dSpec(out_channels=3, kernel=(3, 3), stride=(2, 2), padding=(1, 1)),
    )


def test_anchor_may_be_set_again(recwarn: pytest.WarningsRecorder) -> None:
    config = parse("epochs: 5\n  batch_size: 64", "epochs: &x 5\n  batch_size: &x 7\n  seed: *x")
    assert (config.training.epochs, config.training.seed) == (5, 7)
    assert not recwarn.list


def test_byte_order_mark_and_crlf_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_config(path) == parse()


# What an error says


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epochs: 5", "epoch: 5", "13:3: training.epoch: unknown key; did you mean 'epochs'?"),
        ("epochs: 5", "epochs: 0", "13:11: training.epochs: found 0; give a number above 0"),
        ("epochs: 5", "epochs: -1", "13:11: training.epochs: found -1; give a number above 0"),
        ("epochs: 5", "epochs: 2.5", "13:11: training.epochs: found 2.5; give a whole number"),
        ("epochs: 5", "epochs: true", "13:11: training.epochs: found true; give a whole number"),
        (
            "epochs: 5",
            'epochs: "3"',
            "13:11: training.epochs: found '3'; give a whole number, without quotes",
        ),
        ("epochs: 5", "epochs:", "13:3: training.epochs: found nothing; give a whole number"),
        ("epochs: 5", "epochs: [5]", "13:11: training.epochs: found [5]; give a whole number"),
        (
            "epochs: 5",
            "epochs: {a: 5}",
            "13:11: training.epochs: found a mapping; give a whole number",
        ),
        (
            "  epochs: 5\n",
            "",
            "12:1: training.epochs: missing; add it, for example 'epochs: 5'",
        ),
        (
            "batch_size: 64",
            "batch_size: 0",
            "14:15: training.batch_size: found 0; give a number above 0",
        ),
        (
            "deterministic: false",
            "seed: -1",
            "15:9: training.seed: found -1; give a number of at least 0",
        ),
        (
            "0.05",
            ".nan",
            "16:41: training.optimizer.learning_rate: found nan; give a finite number",
        ),
        (
            "0.05",
            "1e999",
            "16:41: training.optimizer.learning_rate: found inf; give a finite number",
        ),
        ("0.05", "0", "16:41: training.optimizer.learning_rate: found 0; give a number above 0"),
        (
            "0.05}",
            "1, momentum: 1}",
            "16:54: training.optimizer.momentum: found 1; give a number below 1",
        ),
        (
            "0.05",
            "nan",  # YAML's is .nan: this is a word, and nobody wrote quotes
            "16:41: training.optimizer.learning_rate: found 'nan'; give a number",
        ),
        (
            "epochs: 5",
            "epochs: \u0663",
            "13:11: training.epochs: found '\u0663'; give a whole number in the digits 0 to 9",
        ),
        (
            "epochs: 5",
            f"epochs: {'9' * 5000}",
            "13:11: training.epochs: found a number of 5000 digits; give a smaller one",
        ),
        *(
            (
                f"{key}: {old}",
                f"{key}: {2**31}",
                f"{place}: found {2**31}; give a number of at most 2147483647",
            )
            for key, old, place in (
                ("batch_size", "64", "14:15: training.batch_size"),
                ("out_channels", "6", "7:36: network.layers[0].out_channels"),
                ("kernel", "5", "7:47: network.layers[0].kernel"),
                ("padding", "2", "7:59: network.layers[0].padding"),
                ("size", "2", "9:31: network.layers[2].size"),
                ("out_features", "10", "11:35: network.layers[4].out_features"),
            )
        ),
        (
            "[1, 28, 28]",
            f"[1, 28, 1{'0' * 11}]",
            "5:18: network.input[2]: found 100000000000; give a number of at most 2147483647",
        ),
        (
            "set: mnist-5k",
            f"set: mnist-5k, train_count: 1{'0' * 23}",
            f"3:36: data.train_count: found 1{'0' * 23}; give a number of at most 2147483647",
        ),
        *(
            (
                "learning_rate: 0.05",
                f"learning_rate: 1, {key}: {text}",
                f"16:{46 + len(key)}: training.optimizer.{key}: found {found}; "
                "give a number from 1.1755e-38 to 3.4028e+38, the range of float32",
            )
            for key, text, found in (
                ("weight_decay", "1e39", "1e+39"),
                ("weight_decay", "1e-46", "1e-46"),
                ("momentum", "5e-324", "5e-324"),
            )
        ),
        (
            "learning_rate: 0.05",
            "learning_rate: 5e-324",
            "16:41: training.optimizer.learning_rate: found 5e-324; "
            "give a number from 1.1755e-38 to 3.4028e+38, the range of float32",
        ),
        ("kind: sgd", "kind: adam", "16:21: training.optimizer.kind: found 'adam'; known: sgd"),
        (
            "small",
            "../up",
            "2:7: name: found '../up'; "
            "give letters, digits, '.', '_' and '-', a letter, digit or '_' first",
        ),
        (
            "small",
            ".hidden",
            "2:7: name: found '.hidden'; "
            "give letters, digits, '.', '_' and '-', a letter, digit or '_' first",
        ),
        (
            "small",
            "3",
            "2:7: name: found 3; give text, in quotes if it looks like something else",
        ),
        ("small", "a" * 65, f"2:7: name: found '{'a' * 59}...; give at most 64 characters"),
        ("schema: 1", "schema: 2", "1:9: schema: found 2; this program reads schema 1"),
        ("schema: 1", "schema: true", "1:9: schema: found true; give a whole number"),
        ("schema: 1\n", "", "1:1: schema: missing; add it, for example 'schema: 1'"),
        (
            "set: mnist-5k",
            "set: mnist-5",
            "3:13: data.set: found 'mnist-5'; did you mean 'mnist-5k'?",
        ),
        (
            "set: mnist-5k",
            "set: mnist, train_count: 0",
            "3:33: data.train_count: found 0; give a number above 0",
        ),
        (
            "data: {set: mnist-5k}",
            "data: mnist-5k",
            "3:7: data: found 'mnist-5k'; "
            "give a mapping of set, folder, train_count, test_count, transpose",
        ),
        (
            "[1, 28, 28]",
            "[28, 28]",
            "5:10: network.input: found [28, 28]; give three whole numbers [C, H, W]",
        ),
        ("[1, 28, 28]", "28", "5:10: network.input: found 28; give three whole numbers [C, H, W]"),
        ("[1, 28, 28]", "[1, 0, 28]", "5:14: network.input[1]: found 0; give a number above 0"),
        (
            "kernel: 5",
            "kernel: 2.5",
            "7:47: network.layers[0].kernel: found 2.5; "
            "give a whole number, or two of them as [rows, columns]",
        ),
        (
            "kernel: 5",
            "kernel: [5]",
            "7:47: network.layers[0].kernel: found [5]; "
            "give a whole number, or two of them as [rows, columns]",
        ),
        (
            "kernel: 5",
            "kernel: 0",
            "7:47: network.layers[0].kernel: found 0; give a number above 0",
        ),
        (
            "kernel: 5",
            "kernel: [5, -1]",
            "7:51: network.layers[0].kernel[1]: found -1; give a number above 0",
        ),
        ("size: 2", "size: 0", "9:31: network.layers[2].size: found 0; give a number above 0"),
        ("size: 2", "sise: 2", "9:25: network.layers[2].sise: unknown key; did you mean 'size'?"),
        (", size: 2", "", "9:7: network.layers[2].size: missing; add it"),
        (
            "kind: conv2d",
            "kind: conv2",
            "7:14: network.layers[0].kind: found 'conv2'; did you mean 'conv2d'?",
        ),
        (
            "kind: conv2d",
            "kind: lstm",
            f"7:14: network.layers[0].kind: found 'lstm'; known: {', '.join(SPECS)}",
        ),
        (
            "{kind: tanh}",
            "{}",
            f"8:7: network.layers[1].kind: missing; add one of {', '.join(SPECS)}",
        ),
        (
            "{kind: tanh}",
            "tanh",
            "8:7: network.layers[1]: found 'tanh'; give a mapping such as {kind: tanh}",
        ),
        (
            "{kind: tanh}",
            "{kind: tanh, tanh: 3}",
            "8:20: network.layers[1].tanh: unknown key; known: kind, name, cuda",
        ),
        (
            "{kind: tanh}",
            "{kind: tanh, name: a+b}",
            "8:26: network.layers[1].name: found 'a+b'; "
            "give a name without spaces and without + , * / \\",
        ),
        *(
            (
                "{kind: tanh}",
                f'{{kind: tanh, name: "a\\u{code}b"}}',
                f"8:26: network.layers[1].name: found {f'a{chr(int(code, 16))}b'!r}; "
                f"leave out the character U+{code}, which controls the terminal or cannot be seen",
            )
            for code in ("0000", "001B", "007F", "200B", "202E", "2066")
        ),
        (
            "small",
            '"a\\eb"',
            "2:7: name: found 'a\\x1bb'; "
            "give letters, digits, '.', '_' and '-', a letter, digit or '_' first",
        ),
        (
            "epochs: 5",
            "epochs: 1000001",
            "13:11: training.epochs: found 1000001; give a number of at most 1000000",
        ),
        *(
            (
                "engines: [baseline, cuda]",
                f"timing: {{{key}: 1e300}}",
                f"17:{12 + len(key)}: timing.{key}: found 1e+300; give a number of at most 1e+06",
            )
            for key in ("warmup_s", "budget_s")
        ),
        (
            "{kind: tanh}",
            "{kind: tanh, cuda: {backward: pus}}",
            "8:37: network.layers[1].cuda.backward: found 'pus'; did you mean 'push'?",
        ),
        (
            "[baseline, cuda]",
            "[]",
            "17:10: engines: found []; give a list of engines such as [baseline, cuda]",
        ),
        (
            "[baseline, cuda]",
            "cuda",
            "17:10: engines: found 'cuda'; give a list of engines such as [baseline, cuda]",
        ),
        (
            "[baseline, cuda]",
            "[cuda, cuda]",
            "17:10: engines: found ['cuda', 'cuda']; a name stands twice; keep one of them",
        ),
        ("[baseline, cuda]", "[numpy]", "17:11: engines[0]: found 'numpy'; known: baseline, cuda"),
        (
            "engines:",
            "timing: {budget_s: -1}\nengines:",
            "17:20: timing.budget_s: found -1; give a number above 0",
        ),
        (
            "engines:",
            "cuda: {nvcc_flags: -O3}\nengines:",
            "17:20: cuda.nvcc_flags: found '-O3'; give a list, in [ ]",
        ),
        (
            "engines:",
            "epochs: 5\nengines:",
            "17:1: epochs: unknown key; did you mean 'training.epochs'?",
        ),
        (
            "engines:",
            "epohcs: 5\nengines:",
            "17:1: epohcs: unknown key; known: schema, name, data, "
            "network, training, engines, cuda, timing",
        ),
    ],
)
def test_wrong_value_is_named_with_its_place_and_a_remedy(old: str, new: str, message: str) -> None:
    assert error_of(old, new) == f"small.yaml:{message}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "kernel: 5",
            "kernel: 99",
            "7:7: network.layers[0]: layer conv2d1: conv2d: a window of 99 exceeds the input's 28 "
            "(32 with padding); make it smaller",
        ),
        (
            "    - {kind: flatten}\n",
            "",
            "10:7: network.layers[3]: layer dense1: dense needs a vector but gets maps of "
            "6 x 14 x 14; put a flatten before it",
        ),
        (
            "{kind: tanh}",
            "{kind: tanh, name: conv2d1}",
            "8:7: network.layers[1]: the name 'conv2d1' is used by layers 0 and 1; choose another",
        ),
        (
            "    - {kind: flatten}\n    - {kind: dense, out_features: 10}\n",
            "",
            "4:1: network.loss: loss softmax_cross_entropy needs a vector but gets maps of "
            "6 x 14 x 14; put a flatten before it",
        ),
    ],
)
def test_layer_that_does_not_fit_is_reported_where_it_stands(
    old: str, new: str, message: str
) -> None:
    assert error_of(old, new) == f"small.yaml:{message}"


def test_several_errors_have_a_line_each() -> None:
    message = error_of("epochs: 5\n  batch_size: 64", "epochs: 0\n  batch_size: no\n  sede: 1")
    assert message.splitlines() == [
        "small.yaml:15:3: training.sede: unknown key; did you mean 'seed'?",
        "small.yaml:13:11: training.epochs: found 0; give a number above 0",
        "small.yaml:14:15: training.batch_size: found 'no'; give a whole number",
    ]


def test_hundred_errors_are_cut_short() -> None:
    lines = error_of("    - {kind: tanh}\n", "    - {kind: x}\n" * 100).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "small.yaml:1:1: and 90 more errors; mend these first"


AWKWARD = ["", "~", "no", "3", "-1", "2.5", "true", '"3"', ".nan", ".inf", "[]", "[[]]", "{}",
           "[1, {a: b}]", "{kind: [a]}", "{kind: {}}", "{kind: tanh}", "'\\0'", "9" * 5000]  # fmt: skip


def keys_of(content: Any, path: str = "") -> list[str]:
    """The dotted path of everything in a dumped config."""
    entries: Any = content.items() if isinstance(content, dict) else ()
    if isinstance(content, list):
        entries = enumerate(content)
    below = [key for part, value in entries for key in keys_of(value, f"{path}.{part}")]
    return [path.removeprefix("."), *below]


@pytest.mark.parametrize("key", keys_of(parse().model_dump(mode="json", by_alias=True))[1:])
def test_awkward_value_anywhere_is_accepted_or_explained(key: str) -> None:
    outcomes = []
    for value in AWKWARD:
        try:
            config = parse("", "", f"{key}={value}")
        except ConfigError as error:
            outcomes.append("refused")
            for line in str(error).splitlines():
                assert LINE_FORM.fullmatch(line), line
                assert "another value" not in line
        else:
            outcomes.append("accepted")
            assert parse_config(dump_config(config), "again") == config
    assert "refused" in outcomes


# YAML that is none


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model:\n\tlayers: []\n", "2:1: tab used for indentation; use spaces"),
        ("model:\n  \tlayers: []\n", "2:3: tab used for indentation; use spaces"),
        ("name: a\t# the first\n", "1:8: tab after 'a'; use spaces"),
        ("name: a\nset:\tb\n", "2:5: tab after 'set:'; use spaces"),
        ("name: a\nset: \t# none\n", "2:6: tab after 'set:'; use spaces"),
        ("name: a\nset: b c \t\n", "2:10: tab after 'c'; use spaces"),
        ("-\ta\n", "1:2: tab after '-'; use spaces"),
        ("", "1:1: the file is empty; start from one of the files in configs/"),
        ("# nothing\n", "1:1: the file is empty; start from one of the files in configs/"),
        ("~\n", "1:1: the file is empty; start from one of the files in configs/"),
        (
            "- schema: 1\n",
            "1:1: the file must hold keys such as 'schema: 1', not a list; "
            "start from one of the files in configs/",
        ),
        (
            "schema\n",
            "1:1: the file must hold keys such as 'schema: 1', not a single value; "
            "start from one of the files in configs/",
        ),
        (GOOD + "---\n" + GOOD, "18:1: a second document begins; keep one in a file"),
        (
            "%YAML 1.1\n---\n" + GOOD,
            "1:1: found a %YAML directive; take it out, configs are YAML 1.2",
        ),
        (
            "name: a\nname: b\n",
            "2:1: name: written twice, first at line 1; keep one of them",
        ),
        (
            GOOD.replace("kernel: 5,", "kernel: 5,\n       kernel: 3,"),
            "8:8: network.layers[0].kernel: written twice, first at line 7; keep one of them",
        ),
        ("name: *small\n", "1:7: found undefined alias 'small'; define it before with &"),
        ("name: &a [*a]\n", "1:7: name[0]: &a contains itself; write the values out"),
        ("a: &a\n  <<: *a\n", "1:4: a: &a contains itself; write the values out"),
        ("a:\n  <<: 3\n", "2:7: a: '<<' merges a mapping; give it an alias of one"),
        ("? [a]\n: 3\n", "1:3: found a list or mapping as a key; a key is a word"),
        (
            "name: !!python/object:os.system x\n",
            "1:7: name: found the tag tag:yaml.org,2002:python/object:os.system; "
            "write the value without it",
        ),
        ("name: !thing {a: 1}\n", "1:7: name: found the tag !thing; write the values without it"),
        ("name: !!int abc\n", "1:7: name: found 'abc', not a number; put text in quotes"),
        (
            "name: a\nset: \0\n",
            "2:6: found the character U+0000; a config is plain text, take it out",
        ),
        (
            "name: a: b\n",
            "1:8: found a ':' where no key can stand; "
            "check the indentation, and put text that contains ': ' in quotes",
        ),
        (
            "name: @a\n",
            "1:7: found character '@' that cannot start any token; put the text in quotes",
        ),
        (
            "name: [a, b\nset: c\n",
            "2:4: expected ',' or ']', but got ':' (while parsing a flow sequence, line 1); "
            "check brackets, quotes and indentation",
        ),
    ],
)
def test_broken_yaml_is_one_line_with_its_place(text: str, message: str) -> None:
    assert error_of_text(text) == f"small.yaml:{message}"


def test_alias_bomb_is_refused() -> None:
    levels = [
        f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 9)}]" for level in range(1, 10)
    ]
    message = error_of_text("\n".join(["l0: &l0 [x]", *levels]))
    assert message.endswith("more than 10000 values, aliases included; a config has far fewer")


def test_bomb_of_merges_is_refused() -> None:
    levels = [
        f"l{level}: &l{level} {{<<: [{', '.join([f'*l{level - 1}'] * 9)}]}}"
        for level in range(1, 10)
    ]
    message = error_of_text("\n".join(["l0: &l0 {x: 1}", *levels]))
    assert "more than 10000 values" in message


@pytest.mark.parametrize("depth", [40, 600])
def test_deep_nesting_is_refused(depth: int) -> None:
    text = "".join(f"{' ' * level}a:\n" for level in range(min(depth, 300)))
    message = error_of_text(text if depth < 300 else "[" * depth)
    assert re.fullmatch(
        r"small\.yaml:\d+:\d+: nested more than 32 levels deep; a config has five", message
    )


# Files


def error_of_file(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_missing_file_names_the_one_that_was_meant(tmp_path: Path) -> None:
    (tmp_path / "lenet5.yaml").write_text(GOOD)
    path = tmp_path / "lenet.yaml"
    assert error_of_file(path) == f"{path}: no such file; did you mean {tmp_path}/lenet5.yaml?"
    other = tmp_path / "quite-different"
    assert error_of_file(other) == f"{other}: no such file; {tmp_path} holds lenet5.yaml"


def test_missing_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "a.yaml"
    assert error_of_file(path) == f"{path}: no such file; there is no folder {path.parent} either"


def test_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    assert error_of_file(tmp_path) == f"{tmp_path}: found a folder; give a config file in it"


def test_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    path = tmp_path / "a.yaml"
    path.touch()
    assert error_of_file(path) == (
        f"{path}: cannot be read (Permission denied); give a config file"
    )


def test_binary_file_is_refused_with_the_place_of_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"schema: 1\nname: \xff\xfe\n")
    assert error_of_file(path) == (
        f"{path}:2:7: found the byte 0xFF, not UTF-8 text; save the file as UTF-8"
    )


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_refused_without_being_waited_for(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "a.yaml"
    make(path)
    assert error_of_file(path) == f"{path}: is a pipe or a device, not a file; give a config file"


def test_huge_file_is_refused_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    assert error_of_file(path) == f"{path}: larger than 64 KiB; give a config file"


# --set


def test_overrides_replace_values_and_the_last_one_wins() -> None:
    config = parse(
        "",
        "",
        "training.epochs=3",
        "training.epochs=4",
        "training.optimizer.learning_rate=1e-3",
        "network.layers[0].kernel=3",
        "network.layers.0.padding=[1, 1]",
        "network.layers[1].cuda.rung=tuned",
        "timing.budget_s = 2",
        "data.folder=a=b",
        "engines=[cuda]",
    )
    assert config.training.epochs == 4
    assert config.training.optimizer.learning_rate == 0.001
    assert config.network.layers[0] == Conv2dSpec(out_channels=6, kernel=(3, 3), padding=(1, 1))
    assert config.network.layers[1].cuda == CudaChoice(rung="tuned")
    assert config.timing.budget_s == 2
    assert config.data.folder == "a=b"
    assert config.engines == ("cuda",)


def test_override_can_give_a_null_and_a_whole_section() -> None:
    config = parse(
        "", "", "data.folder=x", "data.folder=", "training.optimizer={kind: sgd, learning_rate: 1}"
    )
    assert config.data.folder is None
    assert config.training.optimizer.learning_rate == 1


def test_override_of_one_alias_leaves_the_others_alone() -> None:
    config = parse(
        "    - {kind: tanh}\n", "    - &t {kind: tanh}\n    - *t\n", "network.layers[2].name=b"
    )
    assert [layer.name for layer in config.network.layers[1:3]] == [None, "b"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epoch=3", "training.epoch: unknown key; did you mean 'epochs'?"),
        ("trainig.epochs=3", "trainig: unknown key; did you mean 'training'?"),
        ("epochs=3", "epochs: unknown key; did you mean 'training.epochs'?"),
        (
            "cuda.rungs.x=naive",
            "cuda.rungs: unknown key; did you mean 'rung'?",
        ),
        ("training.epochs=0", "training.epochs: found 0; give a number above 0"),
        ("training.epochs=no", "training.epochs: found 'no'; give a whole number"),
        ("training.epochs=", "training.epochs: found nothing; give a whole number"),
        (
            "network.layers[9].kernel=3",
            "network.layers: found no '9' in this list; give a position from 0 to 4",
        ),
        (
            "network.layers.-1.kernel=3",
            "network.layers: found no '-1' in this list; give a position from 0 to 4",
        ),
        (
            "name.x=3",
            "name: holds a single value, so nothing can be set in it; set name itself",
        ),
        ("epochs", "not of the form key=value; write for example --set training.epochs=3"),
        ("=3", "not of the form key=value; write for example --set training.epochs=3"),
        ("a..b=3", "not of the form key=value; write for example --set training.epochs=3"),
        (
            "network.layers[0].kernel=99",
            "network.layers[0]: layer conv2d1: conv2d: a window of 99 exceeds the input's 28 "
            "(32 with padding); make it smaller",
        ),
        (
            "network.input=[1, 1, 1]",
            "network.layers[2]: layer maxpool2d1: maxpool2d: a window of 2 exceeds the input's 1; "
            "make it smaller",
        ),
    ],
)
def test_wrong_override_points_at_itself(override: str, message: str) -> None:
    assert error_of("", "", override) == f"--set {override}: {message}"


def test_error_in_the_file_still_points_at_the_file() -> None:
    assert error_of("epochs: 5", "epochs: 0", "training.seed=3").startswith("small.yaml:13:11: ")


# Writing


def test_dumped_config_is_equal_when_read_again() -> None:
    config = parse(
        "{kind: tanh}",
        "{kind: conv2d, name: no, out_channels: 3, kernel: [3, 5], stride: [1, 2],"
        " cuda: {backward: pull}}",
        "training.optimizer.learning_rate=0.00001",
        "training.optimizer.weight_decay=1.2e-38",
        "training.optimizer.momentum=0.30000000000000004",
        "name='1e-3'",
        "data.folder='a: b # \"c\"\\d\te'",
        "cuda.nvcc_flags=['-ccbin', 'g++-12']",
    )
    text = dump_config(config)
    assert parse_config(text, "again") == config
    assert dump_config(parse_config(text, "again")) == text
    assert parse_config(text, "again").training.optimizer.learning_rate == 0.00001


def test_dumped_config_says_every_default() -> None:
    text = dump_config(parse())
    for line in (
        "schema: 1",
        "data: {set: mnist-5k, folder: null, train_count: null, test_count: null, transpose: false}",
        "  - {kind: maxpool2d, size: 2, stride: 2}",
        "  loss: softmax_cross_entropy",
        "  seed: 0",
        "timing: {warmup_s: 0.2, warmup_count: 5, target_relative_mad: 0.01, budget_s: 10.0, "
        "cache: warm}",
    ):
        assert line in text.splitlines()


# The configs that come with the program

KNOWN_NETWORKS: dict[str, tuple[int, list[tuple[int, ...]]]] = {
    "quickstart": (61_706, [(6, 28, 28), (6, 14, 14), (16, 10, 10), (16, 5, 5), (400,)]),
    "lenet5-fashion": (61_706, [(6, 28, 28), (6, 14, 14), (16, 10, 10), (16, 5, 5), (400,)]),
    "lenet5-mnist": (61_706, [(6, 28, 28), (6, 14, 14), (16, 10, 10), (16, 5, 5), (400,)]),
    "simard2003": (132_540, [(5, 13, 13), (50, 5, 5), (1250,), (100,)]),
    "parallelcnn": (34_622, [(6, 24, 24), (6, 12, 12), (16, 8, 8), (16, 4, 4), (256,), (120,)]),
    "cifar-quick": (
        145_578,
        [(32, 32, 32), (32, 16, 16), (32, 8, 8), (64, 8, 8), (64, 4, 4), (1024,), (64,)],
    ),
}


def test_no_shipped_config_is_unknown_to_these_tests() -> None:
    assert {path.stem for path in CONFIGS.iterdir()} == set(KNOWN_NETWORKS)


@pytest.mark.parametrize("name", KNOWN_NETWORKS)
def test_shipped_config_has_the_shapes_and_parameters_of_its_network(name: str) -> None:
    config = load_config(CONFIGS / f"{name}.yaml")
    network = config.build_network()
    parameter_count, shapes = KNOWN_NETWORKS[name]
    assert config.name == name
    assert network.parameter_count == parameter_count
    assert network.output_shape == (10,)
    seen = [shape for shape, _ in itertools.groupby(layer.y_shape for layer in network.layers)]
    assert seen[: len(shapes)] == shapes
    assert parse_config(dump_config(config), "again") == config


@pytest.mark.parametrize("name", KNOWN_NETWORKS)
def test_shapes_in_the_comments_of_a_shipped_config_are_true(name: str) -> None:
    network = load_config(CONFIGS / f"{name}.yaml").build_network()
    lines = (CONFIGS / f"{name}.yaml").read_text().splitlines()
    layers = [line for line in lines if line.startswith("    - {kind:")]
    assert len(layers) == len(network.layers)
    told = [
        (line.partition("# -> ")[2], layer)
        for line, layer in zip(layers, network.layers, strict=True)
    ]
    assert [text for text, _ in told if text]
    for text, layer in told:
        if text:
            assert math.prod(map(int, text.split(" x "))) == math.prod(layer.y_shape)
            assert tuple(map(int, text.split(" x "))) == layer.y_shape


def test_quickstart_is_small_enough_for_two_slow_cores() -> None:
    config = load_config(CONFIGS / "quickstart.yaml")
    assert config.data.set == "mnist-5k"
    assert config.training.epochs * 4000 <= 20_000
    assert config.timing.budget_s <= 2
    assert config.cuda.rung == "naive"
