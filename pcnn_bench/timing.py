"""The timing pass: samples of steps and of stages, taken alternately; it changes no weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING

from pcnn_bench import stats
from pcnn_bench.engine import STAGE_PHASES, WHOLE_STEP, Engine, Phase, Stage, StageClock, Work
from pcnn_bench.network import Floats, Labels
from pcnn_bench.results import MERGES, LayerRow, SampleRow

if TYPE_CHECKING:
    from pcnn_bench.config import TimingConfig

MIN_SAMPLES = 5
"""A two-sided rank test finds nothing at 5 % with fewer than four a side; and one to spare."""
MIN_SAMPLING_S = 0.5
"""Samples span five of the 100 ms periods in which Linux hands out processor time, so that one
period in which others had the processor does not decide the median."""
MIN_BLOCK_US = 5000.0
"""Steps are timed in blocks at least this long, so that one wait (some 10 us) is below 1 % of it."""
MAX_CPU_OVER_WALL = 1.1
"""More processor time than this for each second of wall time is not a sequential engine."""
MIN_CPU_OVER_WALL = 0.7
"""Less, and others had the processor so often that wall times say more of them than of the engine."""
FENCE = 1.5
"""Interquartile ranges beyond the quartiles from which a sample is an outlier (Tukey 1977)."""


@dataclass(slots=True)
class TimingRecord:
    """What one engine's timing has yielded so far; valid at any moment."""

    samples: list[SampleRow] = field(default_factory=list)
    first_us: dict[tuple[str, Phase], float] = field(default_factory=dict)
    ended_by: str = ""
    """What ended it: ``target`` (the spread is small enough) or ``budget`` (the time is spent)."""
    stage_clock: str = ""
    """Which clock times the stages: ``host`` or ``device``."""
    cpu_ns: int = 0
    wall_ns: int = 0
    """Processor and wall time of all timed steps."""

    @property
    def is_cut_short(self) -> bool:
        """Whether samples were taken, but not as many as wanted."""
        return bool(self.samples) and not self.ended_by

    @property
    def cpu_over_wall(self) -> float | None:
        """Processor time over wall time of the timed steps; about 1 for a sequential engine."""
        return self.cpu_ns / self.wall_ns if self.wall_ns else None


def sequential_doubt(*cpu_over_wall: float | None) -> str:
    """Why times of a sequential engine are not what they should be, from these ratios; empty if nothing is.

    The engine holds one thread and never waits, so processor time and wall time are the same on an idle
    machine.
    """
    known = [ratio for ratio in cpu_over_wall if ratio is not None]
    if max(known, default=1.0) > MAX_CPU_OVER_WALL:
        return (
            f"baseline: not sequential: {max(known):.2f} s of processor time in a second, so ratios are "
            "not against one thread; set OMP_NUM_THREADS and OPENBLAS_NUM_THREADS to 1"
        )
    if min(known, default=1.0) < MIN_CPU_OVER_WALL:
        return (
            f"baseline: had the processor for {min(known):.2f} s of a second only, so its times are wall "
            "times of a contended machine; run again when nothing else does"
        )
    return ""


def launch_once(
    engine: Engine,
    x: Floats,
    labels: Labels,
    partial_count: int,
    learning_rate: float,
    record: TimingRecord,
) -> None:
    """One step of x (n, C, H, W), and one of its first ``partial_count`` images if that is not 0.

    Whatever happens once in a step happens here: lazy loading, first touch, the shape of the last
    batch. Its results have been checked, so it may be timed: the times go to ``record.first_us``.
    They are those of the whole step; a stage has been launched before, to be checked by itself, so
    it has no first time. Parameters and learning rate are treated as by ``time_engines``.
    """
    with _parameters_kept(engine, learning_rate):
        start = perf_counter_ns()
        _give(engine, x, labels)
        engine.finish()
        sent = perf_counter_ns()
        engine.step()
        engine.finish()
        done = perf_counter_ns()
        if engine.resident is None:
            record.first_us[WHOLE_STEP, "transfer"] = (sent - start) / 1e3
        record.first_us[WHOLE_STEP, "step"] = (done - sent) / 1e3
        if partial_count:
            _give(engine, x[:partial_count], labels[:partial_count])
            engine.step()
        engine.finish()
        engine.take_losses()


def _give(engine: Engine, x: Floats, labels: Labels) -> None:
    """Let the steps that follow take this batch; of an engine that keeps the training set, its first images."""
    if engine.resident:
        engine.resident.set_order(range(len(labels)))
    else:
        engine.set_batch(x, labels)


class TimingPass:
    """The timing pass of one engine, a round at a time, so that several engines can take turns.

    Each round takes one sample of the transfer of the batch, of a block of steps (host clock, no events) and of each
    stage (the engine's own clock, read after the step). It is over when the spread is below the target or the budget
    is spent. The spread is that of the steps and that of the sum over the stages: one clock may settle before the
    other; time in which other engines have their turn is not spent.
    """

    def __init__(
        self,
        engine: Engine,
        x: Floats,
        labels: Labels,
        timing: TimingConfig,
        learning_rate: float,
        record: TimingRecord,
    ) -> None:
        self.engine, self.learning_rate, self.record = engine, learning_rate, record
        self._batch = x, labels
        self._timing = timing
        self._rounds: list[tuple[float, float]] = []
        self._spent_s = 0.0

    def warm_up(self) -> None:
        """At least so many rounds and at least so long."""
        self._sampler = _Sampler(self.engine, *self._batch, self.record)
        start, warmed = perf_counter_ns(), 0
        least = max(self._timing.warmup_count, 1)
        while warmed < least or _seconds_since(start) < self._timing.warmup_s:
            self._sampler.round(warmed, is_warmup=True)
            warmed += 1

    def round(self) -> None:
        """One round of steady samples; notes in the record if it was the last."""
        timing, start = self._timing, perf_counter_ns()
        self._rounds.append(self._sampler.round(len(self._rounds), is_warmup=False))
        self._spent_s += _seconds_since(start)
        if len(self._rounds) < MIN_SAMPLES:
            return
        spreads = map(stats.relative_mad, zip(*self._rounds, strict=True))
        is_steady = all(spread <= timing.target_relative_mad for spread in spreads)
        if is_steady and self._spent_s >= min(MIN_SAMPLING_S, timing.budget_s):
            self.record.ended_by = "target"
        elif self._spent_s >= timing.budget_s:
            self.record.ended_by = "budget"


def time_engines(passes: Sequence[TimingPass]) -> None:
    """Warm every engine up, then let them take rounds in turn until each has enough: drift favours none.

    The engines step with learning rate 0 and get their parameters back.
    """
    with ExitStack() as stack:
        for each in passes:
            stack.enter_context(_parameters_kept(each.engine, each.learning_rate))
        for each in passes:
            each.warm_up()
        while waiting := [each for each in passes if not each.record.ended_by]:
            for each in waiting:
                each.round()
    for each in passes:
        each.record.samples[:] = flag_outliers(each.record.samples)


class _Sampler:
    """Takes rounds of samples of one engine on one batch."""

    def __init__(self, engine: Engine, x: Floats, labels: Labels, record: TimingRecord) -> None:
        self._engine, self._x, self._labels, self._record = engine, x, labels, record
        self._clock = engine.make_clock()
        _give(engine, x, labels)
        record.stage_clock = self._clock.kind
        self._step_count = 1
        self._blank = SampleRow(
            engine.name,
            engine.device,
            engine.rung,
            WHOLE_STEP,
            "step",
            len(x),
            0,
            1,
            False,
            0.0,
            "",
        )

    def round(self, repeat: int, *, is_warmup: bool) -> tuple[float, float]:
        """One sample of everything; microseconds of a step, and of all stages together.

        Warm-ups also set the blocks' length.
        """
        blank = replace(self._blank, repeat=repeat, is_warmup=is_warmup)
        add = self._record.samples.append
        if self._engine.resident is None:  # else a kernel of the step, timed with the stages
            add(replace(blank, phase="transfer", time_us=self._time_transfer()))
        step_us = self._time_steps(self._step_count)
        add(replace(blank, step_count=self._step_count, time_us=step_us))
        stages = self._time_stages()
        for (stage, phase), time_us in stages.items():
            add(replace(blank, stage=stage, phase=phase, time_us=time_us, flags=self._clock.flags))
        if is_warmup:
            # at 1 us a step or less, a longer block would only fill the launch queue
            self._step_count = ceil(MIN_BLOCK_US / max(step_us, 1.0))
        return step_us, sum(stages.values())

    def _time_transfer(self) -> float:
        """Microseconds to bring the batch to where ``step`` reads it."""
        start = perf_counter_ns()
        self._engine.set_batch(self._x, self._labels)
        self._engine.finish()
        return (perf_counter_ns() - start) / 1e3

    def _time_steps(self, step_count: int) -> float:
        """Microseconds a step over a block that ends when its work has ended."""
        engine = self._engine
        cpu_start, start = process_time_ns(), perf_counter_ns()
        for _ in range(step_count):
            engine.step()
        engine.finish()
        wall_ns = perf_counter_ns() - start
        self._record.cpu_ns += process_time_ns() - cpu_start
        self._record.wall_ns += wall_ns
        engine.take_losses()  # so that they do not pile up
        return wall_ns / 1e3 / step_count

    def _time_stages(self) -> dict[tuple[str, Phase], float]:
        """Microseconds of every span of one step."""
        self._engine.step(self._clock)
        times = _span_times(self._clock)
        self._engine.take_losses()
        return times


def _span_times(clock: StageClock) -> dict[tuple[str, Phase], float]:
    """Wait for the spans; their microseconds, summed by stage and phase."""
    times: dict[tuple[str, Phase], float] = defaultdict(float)
    for stage, phase, time_us in clock.drain():
        times[stage, phase] += time_us
    return dict(times)


@contextmanager
def _parameters_kept(engine: Engine, learning_rate: float) -> Iterator[None]:
    """Let the body step the engine without any lasting change."""
    kept = engine.parameters()
    engine.set_learning_rate(0.0)
    try:
        yield
    finally:
        engine.load_parameters(kept)
        engine.set_learning_rate(learning_rate)


def _seconds_since(start_ns: int) -> float:
    return (perf_counter_ns() - start_ns) / 1e9


def flag_outliers(samples: Sequence[SampleRow]) -> list[SampleRow]:
    """The same samples, those outside Tukey's fences flagged; warm-ups are not judged."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for sample in samples:
        if not sample.is_warmup:
            times[sample.stage, sample.phase].append(sample.time_us)
    fences = {key: _fences(steady) for key, steady in times.items()}

    def is_outlier(sample: SampleRow) -> bool:
        low, high = fences[sample.stage, sample.phase]
        return not low <= sample.time_us <= high

    return [
        replace(sample, flags=";".join(filter(None, (sample.flags, "outlier"))))
        if not sample.is_warmup and is_outlier(sample)
        else sample
        for sample in samples
    ]


def _fences(times: Sequence[float]) -> tuple[float, float]:
    """Between which times a sample is no outlier."""
    low, high = stats.quartiles(times)
    reach = FENCE * (high - low)
    return low - reach, high + reach


def layer_rows(
    engine: Engine, record: TimingRecord, batch_size: int, status: str
) -> list[LayerRow]:
    """The record summarised: each phase of each stage, then the whole step and the transfer.

    A phase without a sample (the pass was cut short) has a row without times.
    """
    names = tuple(layer.name for layer in engine.network.all_layers)
    whole = Stage(WHOLE_STEP, names, "", lambda _: {})
    parts: list[tuple[Stage, Phase, Work | None]] = []
    for stage in engine.stages:
        work = stage.work(batch_size)
        parts += [(stage, phase, work[phase]) for phase in STAGE_PHASES if phase in work]
    total = Work(
        sum(work.flop_count for _, _, work in parts if work),
        sum(work.byte_count for _, _, work in parts if work),
    )
    parts += [(whole, "step", total), (whole, "transfer", None)]
    return [_layer_row(engine, record, batch_size, status, *part) for part in parts]


def _layer_row(
    engine: Engine,
    record: TimingRecord,
    batch_size: int,
    status: str,
    stage: Stage,
    phase: Phase,
    work: Work | None,
) -> LayerRow:
    """One row; the rates are those of the median."""
    samples = [s for s in record.samples if (s.stage, s.phase) == (stage.name, phase)]
    times = [sample.time_us for sample in samples if not sample.is_warmup]
    summary = _summary(times)
    median_us = summary["median_us"]
    is_step, is_sent = phase == "step", phase == "transfer" and engine.resident is None
    flags = [record.ended_by] if record.ended_by else []
    if is_step and engine.name == "baseline" and (record.cpu_over_wall or 0) > MAX_CPU_OVER_WALL:
        flags.append("not_sequential")
    flags += _common_flags(samples)
    flags += [
        f"{MERGES}{other}"
        for each, others in stage.merges.items()
        if each == phase
        for other in others
    ]
    return LayerRow(
        engine=engine.name,
        device=engine.device,
        rung=engine.rung,
        stage=stage.name,
        layers="+".join(stage.layers),
        op=stage.op,
        direction=stage.direction,
        phase=phase,
        batch_size=batch_size,
        sample_count=len(times),
        warmup_count=len(samples) - len(times),
        first_us=record.first_us.get((stage.name, phase)),
        compile_ms=engine.compile_s * 1e3 if is_step and engine.compile_s else None,
        flop_count=work.flop_count if work else None,
        byte_count=work.byte_count if work else None,
        gflop_per_s=work.flop_count / median_us / 1e3 if work and median_us else None,
        gbyte_per_s=work.byte_count / median_us / 1e3 if work and median_us else None,
        clock="host" if is_step or is_sent else record.stage_clock,
        flags=";".join(flags),
        status=status,
        **summary,
    )


def _common_flags(samples: Sequence[SampleRow]) -> list[str]:
    """What the clock said of more than half of the steady samples, so that it concerns their median."""
    said = Counter(
        flag
        for sample in samples
        if not sample.is_warmup
        for flag in sample.flags.split(";")
        if flag not in ("", "outlier")
    )
    steady = sum(not sample.is_warmup for sample in samples)
    return [flag for flag, count in said.items() if 2 * count > steady]


def _summary(times: Sequence[float]) -> dict[str, float | None]:
    """Median, MAD, minimum and quartiles in microseconds; absent without a sample."""
    names = ("median_us", "mad_us", "min_us", "p25_us", "p75_us")
    if not times:
        return dict.fromkeys(names)
    values = (stats.median(times), stats.mad(times), min(times), *stats.quartiles(times))
    return dict(zip(names, values, strict=True))
