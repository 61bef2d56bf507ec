"""Metrics for TensorBoard: a record a step, on disk before the step ends, and an error where one is."""

from __future__ import annotations

import io
import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path


def event_file(folder: Path) -> Path | None:
    """A file of a name that TensorBoard reads; None where TensorBoard is not installed."""
    try:
        import tensorboard.compat.proto.event_pb2  # noqa: F401
    except ImportError:
        return None
    return folder / f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}.{os.getpid()}"


def append(file: Path, step: int, row: Mapping[str, float | int | str]) -> None:
    """Append the finite numbers of a step.

    Raises:
        OSError: with the name of the file, where the disk takes no more.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
    values = [Summary.Value(tag=n, simple_value=v) for n, v in numbers.items() if math.isfinite(v)]
    events = [Event(wall_time=time.time(), step=step, summary=Summary(value=values))]
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        events.insert(0, Event(wall_time=time.time(), file_version="brain.Event:2"))
    records = io.BytesIO()
    for event in events:
        RecordWriter(records).write(event.SerializeToString())
    try:
        with file.open("ab") as out:
            out.write(records.getbuffer())
    except OSError as error:
        error.filename = str(file)
        raise
