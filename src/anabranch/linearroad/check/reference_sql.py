"""The rules of Linear Road as SQL, one named view per rule, in the order in which they build on each other.

`reference.py` runs them. Each view states its rule in a comment, so that a reader can check it against the
specification. A rule on which the two validators disagree is a `Rule` with two texts; the modes differ nowhere else.
A result that is read more than once is a table, and so computed once.

The SQL is DuckDB's. Integers are widened before they are added or compared, because the columns of the input are
narrow. Times are whole seconds, minutes are M(t) = t // 60 + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.linearroad.schema import Mode


@dataclass(frozen=True)
class Rule:
    """One view of the reference: the same in both modes, or one text for each of them."""

    name: str
    paper: str
    flat_lav: str
    stored: bool = False
    """Whether it is a table, because several others read it or it is large."""

    def statement(self, mode: Mode) -> str:
        """The SQL that creates the view."""
        sql = self.paper if mode is Mode.PAPER else self.flat_lav
        return f"CREATE {'TABLE' if self.stored else 'VIEW'} {self.name} AS {sql}"


def _same(name: str, sql: str, *, stored: bool = False) -> Rule:
    return Rule(name, sql, sql, stored)


ROAD = (
    _same(
        "report",
        # Position reports, each with the car's report before and the time of the one after. More than 60 s of silence,
        # or another expressway, end a trip: what follows is a re-entry. A tuple without a valid place is not a report.
        """
        SELECT Time::INT AS Time, Time // 60 + 1 AS Minute, VID, Spd, XWay, Lane, Dir, Seg, Pos,
               lag(Time) OVER car AS PrevTime,
               coalesce(Time - lag(Time) OVER car > 60 OR XWay <> lag(XWay) OVER car, true) AS NewTrip,
               lag(XWay) OVER car AS PrevXWay, lag(Dir) OVER car AS PrevDir, lag(Seg) OVER car AS PrevSeg,
               lag(Lane) OVER car AS PrevLane, lag(Pos) OVER car AS PrevPos, lag(Spd) OVER car AS PrevSpd,
               lead(Time) OVER car AS NextTime, row_number() OVER car AS Number
        FROM input
        WHERE Type = 0 AND Time >= 0 AND VID BETWEEN 0 AND 2147483646 AND XWay >= 0 AND Lane BETWEEN 0 AND 4
          AND Dir BETWEEN 0 AND 1 AND Seg BETWEEN 0 AND 99
        WINDOW car AS (PARTITION BY VID ORDER BY Time)
        """,
    ),
    _same(
        "telling",
        # The reports that anything but a statistic depends on: the first in a segment, in any lane, where on a new trip
        # every segment is new; and those identical to the report before. A lane change is a move.
        """
        SELECT *, NewTrip OR XWay <> PrevXWay OR Dir <> PrevDir OR Seg <> PrevSeg AS Enters,
               NOT NewTrip AND XWay = PrevXWay AND Lane = PrevLane AND Dir = PrevDir AND Pos = PrevPos AS Still
        FROM report WHERE Enters OR Still
        """,
        stored=True,
    ),
    _same("entry", "SELECT VID, Time, Minute, XWay, Dir, Seg, Lane, NewTrip FROM telling WHERE Enters"),
    Rule(
        "notified",
        # Notify: on the first report in a segment, unless in the exit lane.
        # paper: not again in a segment in which the car was notified earlier in the run, not even on another trip.
        paper="""
        SELECT VID, Time, Minute, XWay, Dir, Seg FROM entry WHERE Lane <> 4
        QUALIFY row_number() OVER (PARTITION BY VID, XWay, Dir, Seg ORDER BY Time) = 1
        """,
        flat_lav="SELECT VID, Time, Minute, XWay, Dir, Seg FROM entry WHERE Lane <> 4",
    ),
)

STATISTICS = (
    _same(
        "car_minute",
        # What a car did in a segment in a minute, in all lanes.
        """
        SELECT XWay, Dir, Seg, Time // 60 + 1 AS Minute, VID, sum(Spd) AS Speeds, count(*) AS Reports
        FROM input WHERE Type = 0 GROUP BY ALL
        """,
    ),
    _same(
        "segment_minute",
        # numvehicles: distinct cars. And the two ways to average: over cars, and over reports.
        """
        SELECT XWay, Dir, Seg, Minute, count(*) AS Cars, avg(Speeds / Reports) AS CarMean,
               sum(Speeds)::BIGINT AS Speeds, sum(Reports)::BIGINT AS Reports
        FROM car_minute GROUP BY ALL
        """,
        stored=True,
    ),
    Rule(
        "lav",
        # LAV(m) of the minutes m-5..m-1 and numvehicles(m-1). A minute of which one is asked has a report, so a row.
        # paper: mean of the minutes' means over cars, truncated; -1 without data. The billionth is for means that are
        #   whole numbers: the order in which floats were added must not make 40 out of them 39.
        # flat-lav: mean over all reports, rounded half up in whole numbers; 0 without data.
        paper="""
        SELECT XWay, Dir, Seg, Minute, coalesce(floor(avg(CarMean) OVER five + 1e-9), -1)::INT AS LAV,
               coalesce(max(Cars) OVER one, 0) AS Cars
        FROM segment_minute
        WINDOW five AS (PARTITION BY XWay, Dir, Seg ORDER BY Minute RANGE BETWEEN 5 PRECEDING AND 1 PRECEDING),
               one AS (PARTITION BY XWay, Dir, Seg ORDER BY Minute RANGE BETWEEN 1 PRECEDING AND 1 PRECEDING)
        """,
        flat_lav="""
        SELECT XWay, Dir, Seg, Minute,
               coalesce((2 * sum(Speeds) OVER five + sum(Reports) OVER five) // (2 * sum(Reports) OVER five), 0)::INT
                   AS LAV,
               coalesce(max(Cars) OVER one, 0) AS Cars
        FROM segment_minute
        WINDOW five AS (PARTITION BY XWay, Dir, Seg ORDER BY Minute RANGE BETWEEN 5 PRECEDING AND 1 PRECEDING),
               one AS (PARTITION BY XWay, Dir, Seg ORDER BY Minute RANGE BETWEEN 1 PRECEDING AND 1 PRECEDING)
        """,
    ),
)

ACCIDENTS = (
    Rule(
        "still",
        # paper: only reports of speed 0 tell of a stop.
        paper="SELECT * FROM telling WHERE Still AND Spd = 0 AND PrevSpd = 0",
        flat_lav="SELECT * FROM telling WHERE Still",
    ),
    _same(
        "halt",
        # Consecutive identical reports belong together: their numbers grow with the rank. A halt of n rows here has
        # n + 1 reports, the first at PrevTime of the first row.
        "SELECT *, Number - row_number() OVER (PARTITION BY VID ORDER BY Time) AS Halt FROM still",
    ),
    Rule(
        "stopped",
        # Stopped: four consecutive identical reports.
        # paper: every report with four identical ones after it; the third after it is its fourth, the last its fifth.
        # flat-lav: one row per halt; from the fourth report until the first from elsewhere, which may never come.
        paper="""
        SELECT VID, XWay, Dir, Lane, Seg, Pos, PrevTime AS Time, lead(Time, 2) OVER stay AS Fourth,
               lead(Time, 3) OVER stay AS Fifth
        FROM halt
        WINDOW stay AS (PARTITION BY VID, Halt ORDER BY Time) QUALIFY Fifth IS NOT NULL
        """,
        flat_lav="""
        SELECT VID, XWay, Dir, Lane, Seg, Pos, list(Time ORDER BY Time)[3] AS Fourth,
               CASE WHEN max(NextTime) > max(Time) THEN max(NextTime) END AS Moved
        FROM halt GROUP BY VID, Halt, XWay, Dir, Lane, Seg, Pos HAVING count(*) >= 3
        """,
    ),
    Rule(
        "accident",
        # Accident: two cars stopped at one place at once. In force from First to Last, both minutes included.
        # paper: a car's stopped report and another's at most 30 s before it make a pair. From the minute after the
        #   first pair's fourth report through the minute after the last pair's fifth. All pairs at one position, in
        #   all lanes and at all times, are one accident: that needs foresight, which an online system does not have.
        # flat-lav: from the minute after the second car's fourth report through the minute in which one of the two
        #   reports from elsewhere. A segment has one accident in a run, the first; cleared too early, it never counts.
        paper="""
        SELECT a.XWay, a.Dir, a.Seg, a.Pos, min(b.Fourth) // 60 + 2 AS First, max(b.Fifth) // 60 + 2 AS Last
        FROM stopped AS a JOIN stopped AS b
            ON a.XWay = b.XWay AND a.Dir = b.Dir AND a.Lane = b.Lane AND a.Pos = b.Pos AND a.VID <> b.VID
            AND b.Time BETWEEN a.Time AND a.Time + 30
        GROUP BY ALL
        """,
        flat_lav="""
        SELECT b.XWay, b.Dir, b.Seg, b.Pos, b.Fourth // 60 + 2 AS First,
               coalesce(least(a.Moved, b.Moved) // 60 + 1, 32767) AS Last
        FROM stopped AS a JOIN stopped AS b
            ON a.XWay = b.XWay AND a.Dir = b.Dir AND a.Lane = b.Lane AND a.Pos = b.Pos
            AND (a.Fourth, a.VID) < (b.Fourth, b.VID) AND b.Fourth < coalesce(a.Moved, 32767)
        QUALIFY row_number() OVER (PARTITION BY b.XWay, b.Dir, b.Seg ORDER BY b.Fourth, b.VID, a.Fourth, a.VID) = 1
        """,
    ),
    _same(
        "in_force",
        # The accident in the alert for a car entering Seg in Minute: at most 4 segments downstream (east: ahead is a
        # larger segment, west: a smaller one), the nearest. A time is below 2^15, so a minute below 548.
        """
        SELECT XWay, Dir, (CASE WHEN Dir = 0 THEN Seg - Distance ELSE Seg + Distance END) AS Seg, Minute,
               arg_min(Seg, Distance) AS AccidentSeg
        FROM accident, range(0, 5) AS r(Distance), range(1, 548) AS m(Minute)
        WHERE Minute BETWEEN First AND Last
        GROUP BY ALL
        """,
        stored=True,
    ),
)

TOLLS = (
    _same(
        "notification",
        # Toll(m): 0 if LAV >= 40, or numvehicles(m-1) <= 50, or an accident is in force; else 2 * (cars - 50)^2.
        """
        SELECT n.VID, n.Time, n.XWay, n.Dir, n.Seg, s.LAV, i.AccidentSeg,
               (CASE WHEN s.LAV < 40 AND s.Cars > 50 AND i.AccidentSeg IS NULL
                THEN 2 * (s.Cars - 50) * (s.Cars - 50) ELSE 0 END)::INT AS Toll
        FROM notified AS n
        JOIN lav AS s USING (XWay, Dir, Seg, Minute)
        LEFT JOIN in_force AS i USING (XWay, Dir, Seg, Minute)
        """,
        stored=True,
    ),
    _same("toll", "SELECT VID, Time, LAV, Toll FROM notification"),
    _same(
        "accident_alert",
        # The alert names the accident's segment, not the car's.
        """
        SELECT Time, XWay, AccidentSeg AS Seg, Dir, VID FROM notification WHERE AccidentSeg IS NOT NULL
        """,
    ),
)

BALANCES = (
    _same("question", "SELECT QID, Time::INT AS Time, VID FROM input WHERE Type = 2 AND Time >= 0", stored=True),
    Rule(
        "account",
        # What the cars that ask have paid on all expressways, from Time on.
        # paper: a toll is charged at the car's next notification on that expressway, and the exit lane does not notify.
        #   So the last segment of a trip is not paid until the car comes back.
        # flat-lav: a toll is charged on entering another segment, in any lane, on the same trip; Number counts charges.
        paper="""
        WITH charge AS (
            SELECT VID, Time, coalesce(lag(Toll) OVER (PARTITION BY VID, XWay ORDER BY Time), 0) AS Charge
            FROM notification SEMI JOIN question USING (VID))
        SELECT VID, Time, sum(Charge) OVER car::BIGINT AS Balance, row_number() OVER car AS Number
        FROM charge
        WINDOW car AS (PARTITION BY VID ORDER BY Time)
        """,
        flat_lav="""
        WITH charge AS (
            SELECT VID, e.Time, CASE WHEN NOT e.NewTrip THEN lag(coalesce(n.Toll, 0)) OVER car END AS Charge
            FROM entry AS e LEFT JOIN notification AS n USING (VID, Time) SEMI JOIN question USING (VID)
            WINDOW car AS (PARTITION BY VID ORDER BY e.Time))
        SELECT VID, Time, Charge, sum(Charge) OVER car::BIGINT AS Balance, row_number() OVER car AS Number
        FROM charge WHERE Charge > 0
        WINDOW car AS (PARTITION BY VID ORDER BY Time)
        """,
        stored=True,
    ),
    Rule(
        "balance",
        # The acceptable answers: Balance, with a ResultTime from Earliest to Latest. One that is not an Alternative is
        # the answer of a system that hides nothing; ResultTime is the validator's.
        # paper: as of a notification in the last 60 s, or the latest; when that one is younger than 30 s, also as of
        #   the one before it, however old, if that was not the car's first. Without a notification there is none: -1.
        # flat-lav: the current balance, or the one without the last charge, as of up to 30 s ago. Of a car with fewer
        #   than two charges the validator gives the alternative as 0 at time 0.
        paper="""
        WITH known AS (
            SELECT q.QID, q.Time, a.Time AS ResultTime, a.Balance, a.Number,
                   max(a.Time) OVER (PARTITION BY q.QID) AS Newest, max(a.Number) OVER (PARTITION BY q.QID) AS Count
            FROM question AS q JOIN account AS a ON a.VID = q.VID AND a.Time <= q.Time)
        SELECT QID, Time, ResultTime, Balance, ResultTime <> Newest AS Alternative, ResultTime AS Earliest,
               ResultTime AS Latest
        FROM known
        WHERE ResultTime = Newest OR ResultTime > Time - 60
           OR (Newest > Time - 30 AND Number = Count - 1 AND Number > 1)
        UNION ALL
        SELECT QID, Time, -1, 0, false, -1, -1 FROM question AS q
        WHERE NOT EXISTS (FROM account AS a WHERE a.VID = q.VID AND a.Time <= q.Time)
        """,
        flat_lav="""
        WITH known AS (
            SELECT q.QID, q.Time, coalesce(a.Balance, 0) AS Balance, coalesce(a.Charge, 0) AS Charge,
                   coalesce(a.Number, 0) AS Charges
            FROM question AS q ASOF LEFT JOIN account AS a ON a.VID = q.VID AND a.Time <= q.Time)
        SELECT QID, Time, Time AS ResultTime, Balance, false AS Alternative, Time - 30 AS Earliest, Time AS Latest
        FROM known
        UNION ALL
        SELECT QID, Time, CASE WHEN Charges >= 2 THEN Time - 30 ELSE 0 END, Balance - Charge, true,
               CASE WHEN Charges >= 2 THEN Time - 30 ELSE least(0, Time - 30) END, Time
        FROM known
        """,
        stored=True,
    ),
)

HISTORY = (
    _same(
        "expenditure",
        # Daily expenditure: what the history says of (VID, Day, XWay); without a row there is no answer.
        """
        SELECT i.Time::INT AS Time, i.QID, h.Toll::INT AS Expenditure
        FROM input AS i JOIN history AS h USING (VID, Day, XWay) WHERE i.Type = 3 AND i.Time >= 0
        """,
    ),
    _same(
        "journey",
        # The segments of a travel time query, from Sinit up to but without Send; east if Sinit < Send, else west.
        """
        SELECT QID, Time::INT AS Time, XWay, DOW, TOD, (Sinit > Send)::TINYINT AS Dir,
               abs(Send - Sinit) AS Length, unnest(range(Sinit, Send, CASE WHEN Sinit < Send THEN 1 ELSE -1 END)) AS Seg
        FROM input WHERE Type = 4 AND Time >= 0 AND Sinit BETWEEN 0 AND 99 AND Send BETWEEN 0 AND 99
        """,
    ),
    _same(
        "traveltime",
        # Each segment takes 3600 // Speed seconds, with the speed and toll of the last row not after TOD. A segment
        # without history leaves the query without an answer; a journey of no segments takes no time.
        """
        SELECT any_value(j.Time) AS Time, j.QID, sum(3600 // s.Speed)::INT AS TravelTime, sum(s.Toll)::INT AS Toll
        FROM journey AS j ASOF JOIN segment_history AS s
            ON s.XWay = j.XWay AND s.Dir = j.Dir AND s.Seg = j.Seg AND s.DOW = j.DOW AND s.TOD <= j.TOD
        GROUP BY j.QID HAVING count(*) = any_value(j.Length)
        UNION ALL
        SELECT Time::INT, QID, 0, 0 FROM input
        WHERE Type = 4 AND Time >= 0 AND Sinit = Send AND Sinit BETWEEN 0 AND 99 AND DOW BETWEEN 0 AND 7
        """,
    ),
)

RULES = ROAD + STATISTICS + ACCIDENTS + TOLLS + BALANCES + HISTORY
