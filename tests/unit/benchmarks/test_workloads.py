"""Workloads of the partitioner benchmark: their rows, keys and skew, and how they are cut into windows."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from anabranch.errors import InvalidArgumentError, MissingDependencyError
from benchmarks import workloads
from benchmarks.trips import CELLS, RATE, RUSH_RATE, TAXIS, cells, trips
from benchmarks.workloads import DEBS_WINDOWS, MINUTE, NAMES, SHARED_DATA_VARIABLE, Workload, shared_data, workload

GENERATED = [name for name in NAMES if not name.startswith("tpch")]
GOOGLE = [name for name in NAMES if name.startswith("google")]
SCALE = 0.05
TPCH_SCALE = 0.01


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Workload]:
    """What can be made on any machine, small."""
    folder = tmp_path_factory.mktemp("generated")
    return {name: workload(name, folder, scale=SCALE) for name in GENERATED}


@pytest.fixture(scope="module")
def tpch_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tables of TPC-H."""
    folder = tmp_path_factory.mktemp("tpch")
    try:
        workload("tpch-q1", folder, scale=TPCH_SCALE)
    except MissingDependencyError as error:
        pytest.skip(error.message)
    return folder


@pytest.fixture(scope="module")
def rides() -> pa.Table:
    return trips(50_000, 7)


def counts(rows: pa.Table, keys: tuple[str, ...]) -> np.ndarray:
    """Rows of each group, the largest first."""
    return np.sort(rows.group_by(list(keys)).aggregate([([], "count_all")])["count_all"].to_numpy())[::-1]


def share_of_top(rows: pa.Table, keys: tuple[str, ...], part: float) -> float:
    """Share of the rows that the largest groups have; `part` of all groups, at least one."""
    of = counts(rows, keys)
    return float(of[: max(1, int(len(of) * part))].sum() / of.sum())


def check_shape(one: Workload) -> None:
    assert one.table.column_names == ["t", *one.keys, *one.values]
    t = one.table["t"]
    assert t.type == pa.int64()
    assert (np.diff(t.to_numpy()) >= 0).all()
    assert all(column.null_count == 0 for column in one.table.columns)
    assert all(pa.types.is_integer(one.table[value].type) for value in one.values), "sums of floats are not exact"
    assert one.title and one.source


class TestWindows:
    @staticmethod
    def at(*t: int, window: int | None = 10) -> Workload:
        table = pa.table({"t": pa.array(t, pa.int64()), "key": ["k"] * len(t)})
        return Workload("x", "x", table, ("key",), (), window, window, False, "x")

    @staticmethod
    def times(windows: list[pa.Table]) -> list[list[int]]:
        return [window["t"].to_pylist() for window in windows]

    def test_begin_at_the_first_row_and_the_rest_is_no_window(self) -> None:
        # 3         13        23        33
        # [---------)[--------)[--------)[...
        # x      x  xx         x         x  x
        assert self.times(self.at(3, 12, 13, 14, 23, 33, 35).windows(9)) == [[3, 12], [13, 14], [23]]

    def test_full_is_what_the_stream_has_passed(self) -> None:
        assert self.times(self.at(0, 9).windows(9)) == []
        assert self.times(self.at(0, 9, 10).windows(9)) == [[0, 9]]

    def test_without_rows_are_left_out(self) -> None:
        assert self.times(self.at(0, 31, 40).windows(9)) == [[0], [31]]

    def test_at_most(self) -> None:
        assert self.times(self.at(0, 10, 20, 30).windows(2)) == [[0], [10]]

    def test_all_rows_are_one_window(self) -> None:
        assert self.times(self.at(0, 10, 20, window=None).windows(5)) == [[0, 10, 20]]

    @pytest.mark.parametrize("window", [10, None])
    def test_of_nothing(self, window: int | None) -> None:
        assert self.at(window=window).windows(5) == []

    @pytest.mark.parametrize("name", GENERATED)
    def test_of_workloads_partition_their_rows(self, generated: dict[str, Workload], name: str) -> None:
        one = generated[name]
        windows = one.windows(1_000_000)
        together = pa.concat_tables(windows)
        assert together.equals(one.table.slice(0, together.num_rows).combine_chunks())
        begin = one.table["t"][0].as_py()
        for i, window in enumerate(windows):
            t = window["t"].to_numpy()
            assert begin + i * one.window <= t[0] and t[-1] < begin + (i + 1) * one.window
        assert one.table["t"][-1].as_py() < begin + (len(windows) + 1) * one.window, "a full one is missing"


class TestGenerated:
    @pytest.mark.parametrize("name", GENERATED)
    def test_shape(self, generated: dict[str, Workload], name: str) -> None:
        check_shape(generated[name])
        assert generated[name].name == name
        assert not generated[name].real and "generated" in generated[name].source

    @pytest.mark.parametrize("name", GENERATED)
    def test_same_rows_each_time(self, generated: dict[str, Workload], name: str, tmp_path: Path) -> None:
        assert workload(name, tmp_path, scale=SCALE).table.equals(generated[name].table)

    def test_four_classes(self, generated: dict[str, Workload]) -> None:
        one = generated["google-q1"]
        assert set(one.table["scheduling_class"].to_pylist()) == {0, 1, 2, 3}
        assert share_of_top(one.table, one.keys, 0) == pytest.approx(0.84, abs=0.01)

    def test_names_of_jobs_are_skewed(self, tmp_path: Path) -> None:
        one = workload("google-jobs", tmp_path)
        assert len(counts(one.table, one.keys)) == 37_749
        for window in one.windows(3):
            assert share_of_top(window, one.keys, 0) > 0.04
            assert share_of_top(window, one.keys, 0.01) > 0.25

    def test_routes_are_pairs_of_cells_in_the_grid(self, generated: dict[str, Workload]) -> None:
        routes = generated["debs-q1"].table["route"]
        assert pc.all(pc.match_substring_regex(routes, r"^\d+\.\d+-\d+\.\d+$")).as_py()
        assert pc.max(pc.binary_length(routes)).as_py() <= 15
        numbers = np.array([int(n) for route in routes.to_pylist() for n in route.replace("-", ".").split(".")])
        assert numbers.min() >= 1 and numbers.max() <= CELLS

    def test_some_routes_are_hot(self, tmp_path: Path) -> None:
        one = workload("debs-q1", tmp_path)
        for window in one.windows(2):
            assert len(counts(window, one.keys)) > window.num_rows / 3, "many groups"
            assert share_of_top(window, one.keys, 0.01) > 0.07

    def test_cells_of_250_m_lie_in_cells_of_the_route(self, generated: dict[str, Workload]) -> None:
        # Both workloads have the same trips. Grids share the centre of cell 1.1, so their borders are 125 m apart.
        fine = generated["debs-q2"].table
        route = generated["debs-q1"].table["route"].to_pylist()
        assert fine["pickup_cell"].type == fine["dropoff_cell"].type == pa.int32()
        for column, end in (("pickup_cell", 0), ("dropoff_cell", 1)):
            x, y = np.divmod(fine[column].to_numpy(), 2 * CELLS)
            coarse = np.array([[int(n) - 1 for n in one.split("-")[end].split(".")] for one in route])
            assert np.isin(x - 2 * coarse[:, 0], [-1, 0, 1]).all()
            assert np.isin(y - 2 * coarse[:, 1], [-1, 0, 1]).all()

    def test_scale_is_the_rate_of_the_trips_and_the_number_of_taxis(self, tmp_path: Path) -> None:
        for scale in (0.1, 1.0):
            one = workload("debs-q2", tmp_path, scale=scale)
            windows = one.windows(100)
            assert len(windows) == DEBS_WINDOWS
            assert one.window == 30 * MINUTE
            for window in windows:
                assert window.num_rows == pytest.approx(20_000 * scale, rel=0.1)
            assert len(counts(one.table, one.keys)) == pytest.approx(TAXIS * scale, rel=0.02)


class TestTrips:
    def test_columns_of_the_challenge(self, rides: pa.Table) -> None:
        assert " ".join(rides.column_names) == (
            "medallion hack_license pickup_datetime dropoff_datetime trip_time_in_secs trip_distance pickup_longitude "
            "pickup_latitude dropoff_longitude dropoff_latitude payment_type fare_amount surcharge mta_tax tip_amount "
            "tolls_amount total_amount"
        )
        assert rides.num_rows == 50_000
        assert pc.all(pc.match_substring_regex(rides["medallion"], "^[0-9a-f]{32}$")).as_py()
        assert pc.all(pc.match_substring_regex(rides["hack_license"], "^[0-9a-f]{32}$")).as_py()
        assert len(rides["medallion"].unique()) > 10_000

    def test_follow_the_seed(self, rides: pa.Table) -> None:
        assert trips(50_000, 7).equals(rides)
        assert not trips(50_000, 8).equals(rides)

    @pytest.mark.parametrize("n", [1, 2, 999])
    def test_as_many_as_asked(self, n: int) -> None:
        assert trips(n, 1).num_rows == n

    def test_come_at_their_rate_by_dropoff(self, rides: pa.Table) -> None:
        seconds = rides["dropoff_datetime"].cast(pa.int64()).to_numpy()
        assert (np.diff(seconds) >= 0).all()
        per_half_hour = np.bincount((seconds - seconds[0]) // 1_800)[:-1]
        assert per_half_hour == pytest.approx(np.full(len(per_half_hour), RATE * 1_800), rel=0.05)

    def test_a_taxi_is_at_one_place_at_a_time(self) -> None:
        frame = trips(30_000, 3, rate=RUSH_RATE / 10, taxis=TAXIS // 10).to_pandas()
        frame = frame.sort_values(["medallion", "dropoff_datetime"])
        before = frame.groupby("medallion").dropoff_datetime.shift()
        assert before.notna().sum() > 20_000
        assert not (frame.pickup_datetime < before).any()
        assert (frame.dropoff_datetime - frame.pickup_datetime == pd.to_timedelta(frame.trip_time_in_secs, "s")).all()

    def test_values_are_plausible(self, rides: pa.Table) -> None:
        frame = rides.to_pandas()
        parts = frame[["fare_amount", "surcharge", "mta_tax", "tip_amount", "tolls_amount"]]
        assert np.allclose(frame.total_amount, parts.sum(axis=1))
        assert (frame.fare_amount >= 2.5).all()
        assert (frame.tip_amount[frame.payment_type == "CSH"] == 0).all()
        # New York in 2013: a mean of 2.9 miles, 12 and a half minutes, 12 dollars.
        assert 2 < frame.trip_distance.mean() < 4
        assert 600 < frame.trip_time_in_secs.mean() < 900
        assert 9 < frame.fare_amount.mean() < 14

    def test_places_are_skewed(self, rides: pa.Table) -> None:
        x, y = cells(rides["pickup_longitude"].to_numpy(), rides["pickup_latitude"].to_numpy())
        of = np.sort(np.bincount((x - 1) * CELLS + y - 1))[::-1]
        assert of[:40].sum() > len(x) / 2
        assert (of > 0).sum() > 500, "and some are anywhere"

    @pytest.mark.parametrize(("metres", "side"), [(500, 300), (250, 600)])
    def test_cells_are_counted_from_the_centre_of_the_first(self, metres: int, side: int) -> None:
        # The examples of the challenge: 500 m south and 500 m east of the origin.
        longitude = np.array([-74.913585, -74.913585 + 0.005986, -74.913585 + 299 * 0.005986])
        latitude = np.array([41.474937, 41.474937 - 0.004491556, 41.474937 - 299 * 0.004491556])
        x, y = cells(longitude, latitude, metres=metres)
        step = 500 // metres
        assert x.tolist() == y.tolist() == [1, 1 + step, 1 + 299 * step]
        assert x[-1] <= side

    def test_too_few_taxis(self) -> None:
        with pytest.raises(InvalidArgumentError, match="two places at once"):
            trips(100, 1, rate=2 * RUSH_RATE)

    @pytest.mark.parametrize("arguments", [{"n": 0}, {"n": 1, "rate": 0.0}, {"n": 1, "taxis": 0}])
    def test_nothing_to_generate(self, arguments: dict[str, int]) -> None:
        with pytest.raises(InvalidArgumentError, match="nothing to generate"):
            trips(seed=1, **arguments)


class TestTpch:
    def test_q1_has_four_groups(self, tpch_folder: Path) -> None:
        one = workload("tpch-q1", tpch_folder, scale=TPCH_SCALE)
        check_shape(one)
        assert len(counts(one.table, one.keys)) == 4
        assert [window.num_rows for window in one.windows(3)] == [one.table.num_rows]

    def test_q1_has_the_values_of_its_items(self, tpch_folder: Path) -> None:
        items = pq.read_table(tpch_folder / f"tpch-{TPCH_SCALE:g}" / "lineitem.parquet").to_pandas()
        items = items[items.l_shipdate <= date(1998, 9, 2)]
        one = workload("tpch-q1", tpch_folder, scale=TPCH_SCALE).table
        assert one["l_returnflag"].to_pylist() == items.l_returnflag.tolist()
        assert one["l_quantity"].to_pylist() == items.l_quantity.tolist()
        assert one["l_extendedprice"].to_pylist() == [price * 100 for price in items.l_extendedprice]

    def test_q3_is_the_join(self, tpch_folder: Path) -> None:
        names = ("customer", "orders", "lineitem")
        files = [tpch_folder / f"tpch-{TPCH_SCALE:g}" / f"{name}.parquet" for name in names]
        customers, orders, items = (pq.read_table(file).to_pandas() for file in files)
        day = date(1995, 3, 15)
        joined = (
            items[items.l_shipdate > day]
            .merge(orders[orders.o_orderdate < day], left_on="l_orderkey", right_on="o_orderkey")
            .merge(customers[customers.c_mktsegment == "BUILDING"], left_on="o_custkey", right_on="c_custkey")
            .sort_values(["l_orderkey", "l_linenumber"])
        )
        one = workload("tpch-q3", tpch_folder, scale=TPCH_SCALE)
        check_shape(one)
        assert one.table["l_orderkey"].to_pylist() == joined.l_orderkey.tolist()
        exact = [
            price * (1 - off) * 10_000 for price, off in zip(joined.l_extendedprice, joined.l_discount, strict=True)
        ]
        assert one.table["revenue"].to_pylist() == exact

    def test_tables_are_made_once(self, tpch_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(workloads.shutil, "which", lambda *_, **__: None)
        workload("tpch-q1", tpch_folder, scale=TPCH_SCALE)
        assert [path.name for path in tpch_folder.iterdir()] == [f"tpch-{TPCH_SCALE:g}"]

    def test_without_the_generator(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(workloads.shutil, "which", lambda *_, **__: None)
        with pytest.raises(MissingDependencyError, match=r'pip install "anabranch\[bench\]"'):
            workload("tpch-q3", tmp_path)
        assert not list(tmp_path.iterdir())


class TestShared:
    @pytest.mark.parametrize("name", GOOGLE)
    def test_google_is_real(self, shared_data: Path, tmp_path: Path, name: str) -> None:
        one = workload(name, tmp_path, shared=shared_data)
        check_shape(one)
        assert one.real and "CC-BY" in one.source
        assert one.table["t"][0].as_py() >= 600_000_000, "what was there before the trace is left out"

    @pytest.mark.parametrize("name", GOOGLE)
    def test_generated_rows_are_like_the_real_ones(self, shared_data: Path, tmp_path: Path, name: str) -> None:
        real, like = workload(name, tmp_path, shared=shared_data), workload(name, tmp_path)
        assert like.table.schema.equals(real.table.schema)
        assert like.table.num_rows == pytest.approx(real.table.num_rows, rel=0.05)
        assert len(counts(like.table, like.keys)) == len(counts(real.table, real.keys))
        for part in (0, 0.01):
            of_like, of_real = (share_of_top(one.table, one.keys, part) for one in (like, real))
            assert of_like == pytest.approx(of_real, rel=0.1)
        groups = [np.median([len(counts(w, one.keys)) for w in one.windows(100)]) for one in (like, real)]
        assert groups[0] == pytest.approx(groups[1], rel=0.1)

    def test_folder_without_the_file(self, tmp_path: Path) -> None:
        assert not workload("google-q1", tmp_path, scale=SCALE, shared=tmp_path).real

    def test_is_found_by_the_variable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(SHARED_DATA_VARIABLE, str(tmp_path))
        assert shared_data() == tmp_path

    def test_is_found_beside_the_checkout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(SHARED_DATA_VARIABLE, raising=False)
        checkout, data = tmp_path / "checkout", tmp_path / "shared" / "data"
        checkout.mkdir()
        monkeypatch.chdir(checkout)
        assert shared_data() is None
        data.mkdir(parents=True)
        assert shared_data() == data


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scale_must_be_positive(tmp_path: Path, scale: float) -> None:
    with pytest.raises(InvalidArgumentError, match="scale"):
        workload("google-q1", tmp_path, scale=scale)


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="the names are tpch-q1, tpch-q3"):
        workload("tpch-q2", tmp_path)
