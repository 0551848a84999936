"""The errors a user can cause, each with its exit code; everything else is a bug and shows a traceback."""

from pathlib import Path


class PcnnError(Exception):
    """One line for the person at the keyboard: where, what was found, what would do."""

    exit_code = 3
    folder: Path | None = None
    """The run folder that holds what there was, where there is one."""


class FindingError(PcnnError):
    """The finding is negative: a mismatch, a diverged run, a regression (exit code 1)."""

    exit_code = 1


class ConfigError(PcnnError):
    """The command line or the config is wrong (exit code 2)."""

    exit_code = 2


class UnavailableError(PcnnError):
    """It cannot be done here: device, compiler, data set, folder or disk unusable (exit code 3)."""


class DataError(UnavailableError):
    """A data set is missing or broken (exit code 3)."""


class DeviceError(UnavailableError):
    """The device or its tool chain is missing, does not fit, or failed (exit code 3)."""


class DeviceMemoryError(DeviceError):
    """The device has too little memory for the plan (exit code 3)."""


class ResultsError(UnavailableError):
    """A result folder cannot be read or written (exit code 3)."""
