"""A morning on an expressway: simulated traffic, and the position reports of its cars.

The road is 25 km long, in 100 segments of 250 m. Cars drive from segment 0 to segment 99. Traffic follows the kinematic
wave model with a triangular diagram, solved on cumulative counts by Newell's method: the cars that can leave a segment
entered it one free travel time ago, and cars can enter when a gap from the far end has travelled back through it.

    flow ▲    _ capacity                 free: cars drive at FREE_SPEED, waves run downstream with them
         │   /  `-_                      jam:  waves run upstream at WAVE_SPEED, whatever the cars do
         │  /       `-_
         │ /            `-_
         └─────────────────`──▶ density

Both travel times are whole numbers of steps, so the arithmetic does not blur waves. An accident leaves a sharp wedge
that moves upstream, and a merge with a varying capacity sends out stop-and-go waves. A window must be shorter than a
wave to show it, which makes good pictures for sliding windows.

The same seed gives the same files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.linearroad.demo.colours import TOP

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

SEGMENTS = 100
SEGMENT_KM = 0.25
BEGIN = datetime(2026, 3, 2, 7, 0, tzinfo=UTC)
"""The time of the first report, a Monday."""

FREE_SPEED, WAVE_SPEED = TOP, 20.0
"""km/h of cars on an empty road, which is the dark end of the colour scale, and of waves through a jam."""
JAM_DENSITY = 420.0
"""Cars per km in standing traffic, on three lanes."""

STEP_S = 2.5
"""Seconds per step of the model: a free car takes 3 steps for a segment, a wave 18."""
_FREE_STEPS = round(SEGMENT_KM / FREE_SPEED * 3600 / STEP_S)
_WAVE_STEPS = round(SEGMENT_KM / WAVE_SPEED * 3600 / STEP_S)
_BEST_DENSITY = JAM_DENSITY * WAVE_SPEED / (FREE_SPEED + WAVE_SPEED)
_CAPACITY = _BEST_DENSITY * FREE_SPEED / 3600 * STEP_S
"""The most cars that can pass a segment in a step."""
_WARM_UP_S = 900
"""The road starts empty; a car crosses it in 750 s."""

MERGE = 92
"""The segment where two roads merge, with a varying capacity."""
CITY = 78
"""The segment nearest to the city, where most cars with a transmitter are."""

NULL_TIMES = 1e-4
"""Share of the reports that have no time, because of a broken clock."""


@dataclass(frozen=True)
class Incident:
    """An incident that blocks a segment for a while, in seconds since the first report."""

    what: str
    segment: int
    begin_s: float
    end_s: float
    open_share: float
    """The share of the capacity that is left."""


@dataclass(frozen=True)
class Traffic:
    """The simulated traffic: density (cars/km) and speed (km/h) by step and segment."""

    minutes: int
    density: Floats
    speed: Floats
    incidents: tuple[Incident, ...]


@dataclass(frozen=True)
class Reports:
    """The written reports: their number, the number without a time, and the number of each segment."""

    rows: int
    null_times: int
    per_segment: Ints
    files: int

    @property
    def skew(self) -> float:
        """Reports of the busiest segment over those of the median one."""
        return float(self.per_segment.max() / max(1.0, float(np.median(self.per_segment))))


def simulate(minutes: int, seed: int) -> Traffic:
    """The traffic of that many minutes, with two accidents and a merge of varying capacity."""
    random = np.random.default_rng(seed)
    incidents = _incidents(minutes, random)
    steps = int((minutes * 60 + _WARM_UP_S) / STEP_S)
    seconds: Floats = np.arange(steps, dtype=np.float64) * STEP_S - _WARM_UP_S
    capacity = _capacities(seconds, minutes, incidents, random)
    density = _flow(capacity, _rush(seconds, minutes))[seconds >= 0]
    return Traffic(minutes, density, _speed(density), incidents)


def write_reports(traffic: Traffic, folder: Path, *, rows: int, files: int, seed: int) -> Reports:
    """Sample position reports from the traffic and write them as Parquet, in the order of time.

    Columns: `time`, `car`, `seg`, `speed` (whole km/h, so that sums are exact). Files get increasing modification
    times, because Spark's file stream reads them in that order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng([seed, 1])
    share = traffic.density * _transmitters()
    per_step = random.multinomial(rows, share.sum(axis=1) / share.sum())
    per_segment, null_times, number = np.zeros(SEGMENTS, np.int64), 0, 0
    for number, steps in enumerate(np.array_split(np.arange(len(per_step)), files)):
        reports = _sample(traffic, share, steps, per_step[steps], random)
        per_segment += np.bincount(reports["seg"].to_numpy(), minlength=SEGMENTS)
        null_times += reports["time"].null_count
        file = folder / f"part-{number:05d}.parquet"
        pq.write_table(reports, file)
        moment = BEGIN.timestamp() + number
        os.utime(file, (moment, moment))
    return Reports(int(per_step.sum()), null_times, per_segment, files)


def _incidents(minutes: int, random: np.random.Generator) -> tuple[Incident, ...]:
    span = minutes * 60.0
    first, second = (float(late) for late in random.uniform(-0.02, 0.02, size=2))
    near, far = (int(shift) for shift in random.integers(-3, 4, size=2))
    return (
        Incident("accident, one lane open", 52 + near, (0.33 + first) * span, (0.45 + first) * span, 0.24),
        Incident("accident, road closed", 24 + far, (0.56 + second) * span, (0.64 + second) * span, 0.0),
    )


def _rush(seconds: Floats, minutes: int) -> Floats:
    """Demand from 0 to 1, with its peak a little before the middle."""
    result: Floats = np.exp(-(((seconds / 60 / minutes) - 0.42) ** 2) / (2 * 0.30**2))
    return result


def _capacities(seconds: Floats, minutes: int, incidents: tuple[Incident, ...], random: np.random.Generator) -> Floats:
    """Cars per step that may leave each segment, by step."""
    capacity = np.full((len(seconds), SEGMENTS), _CAPACITY)
    # At the merge, drivers give way in turns. The turns drift, so that no two waves are the same.
    drift = np.cumsum(random.normal(0.0, 0.07, len(seconds)))
    turns = np.sin(2 * np.pi * seconds / 290 + drift)
    capacity[:, MERGE] *= np.where(seconds > 0.03 * minutes * 60, 0.56 + 0.36 * turns, 1.0)
    for incident in incidents:
        during = (seconds >= incident.begin_s) & (seconds < incident.end_s)
        capacity[during, incident.segment] = _CAPACITY * incident.open_share
    return capacity


def _flow(capacity: Floats, rush: Floats) -> Floats:
    """Density by step and segment, from the cumulative counts of cars that entered and left each segment."""
    steps = len(capacity)
    on_ramp, off_ramp = np.zeros(SEGMENTS), np.zeros(SEGMENTS)
    on_ramp[[16, 44, 70]] = 0.08, 0.10, 0.12
    off_ramp[[26, 60, 84]] = 0.06, 0.10, 0.06
    entered, left = np.zeros((steps + 1, SEGMENTS)), np.zeros((steps + 1, SEGMENTS))
    density = np.zeros((steps, SEGMENTS))
    for t in range(steps):
        density[t] = (entered[t] - left[t]) / SEGMENT_KM
        arrived = entered[max(0, t + 1 - _FREE_STEPS)]
        gaps = left[max(0, t + 1 - _WAVE_STEPS)] + JAM_DENSITY * SEGMENT_KM
        can_leave = np.minimum(arrived - left[t], capacity[t])
        can_enter = np.minimum(gaps - entered[t], _CAPACITY)
        joining = on_ramp * _CAPACITY * (0.25 + 0.75 * rush[t])
        leaving, entering = can_leave.copy(), np.empty(SEGMENTS)
        # Cars from a ramp go first; those on the road take what room is left.
        leaving[:-1] = np.minimum(can_leave[:-1], np.maximum(can_enter - joining, 0.0)[1:] / (1 - off_ramp[1:]))
        entering[1:] = np.minimum(leaving[:-1] * (1 - off_ramp[1:]) + joining[1:], can_enter[1:])
        entering[0] = min((0.55 + 0.22 * rush[t]) * _CAPACITY, can_enter[0])
        entered[t + 1], left[t + 1] = entered[t] + entering, left[t] + leaving
    return density


def _speed(density: Floats) -> Floats:
    """Mean speed at that density. In free traffic, drivers slow down a little as density grows."""
    free = FREE_SPEED * (1 - 0.12 * np.minimum(density / _BEST_DENSITY, 1.0))
    jam = WAVE_SPEED * (JAM_DENSITY / np.maximum(density, 1.0) - 1.0)
    result: Floats = np.clip(np.minimum(free, jam), 2.0, None)
    return result


def _transmitters() -> Floats:
    """The share of cars that report. It falls with the distance from the city by Zipf's law, which makes the skew."""
    distance = np.abs(np.arange(SEGMENTS) - CITY)
    result: Floats = (1 + distance / 5) ** -0.9
    return result


def _sample(traffic: Traffic, share: Floats, steps: Ints, counts: Ints, random: np.random.Generator) -> pa.Table:
    """`counts` reports from each of the steps, sorted by time."""
    step = np.repeat(steps, counts)
    # Draw each report's segment by inverting its step's distribution.
    upto = np.cumsum(share[steps], axis=1)
    upto /= upto[:, -1:]
    row = np.repeat(np.arange(len(steps)), counts)
    flat = (upto + np.arange(len(steps))[:, None]).ravel()
    segment = np.searchsorted(flat, row + random.random(len(step)), side="right") - row * SEGMENTS
    segment = np.clip(segment, 0, SEGMENTS - 1)
    micros = ((step + random.random(len(step))) * (STEP_S * 1e6)).astype(np.int64)
    order = np.argsort(micros, kind="stable")
    speed = np.rint(traffic.speed[step, segment] * random.normal(1.0, 0.1, len(step))).clip(0, 200)
    broken = random.random(len(step)) < NULL_TIMES
    start = int(BEGIN.timestamp()) * 1_000_000
    return pa.table(
        {
            "time": pa.array(start + micros[order], pa.timestamp("us", tz="UTC"), mask=broken),
            "car": pa.array(random.integers(0, 20_000, len(step)), pa.int32()),
            "seg": pa.array(segment[order], pa.int32()),
            "speed": pa.array(speed[order], pa.int32()),
        }
    )
