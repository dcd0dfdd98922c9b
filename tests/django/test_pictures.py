"""Pictures are well-formed whatever they show, and say in words and signs what they say in colours."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.django.pictures import Bar, heatmap, timeline
from celery_qbeat.django.pictures.heatmap import short
from celery_qbeat.django.times import ago, clock, length
from celery_qbeat.django.verdicts import LOOKS, look

SVG = "{http://www.w3.org/2000/svg}"
NOW = 1_800_000_000_000_000

printable = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=20)
instants = st.integers(-(10**18), 10**18)
lengths = st.integers(0, 10**15)
bars = st.builds(
    Bar,
    slot_us=instants,
    verdict=st.sampled_from([*Verdict, "of tomorrow"]).map(str),
    duration_us=st.none() | lengths,
    late_us=lengths,
    words=printable,
)


@given(st.lists(bars, max_size=30), st.lists(instants, max_size=8), instants)
def test_a_timeline_is_well_formed_for_any_runs(runs: list[Bar], following: list[int], now: int) -> None:
    picture = ElementTree.fromstring(timeline(runs, following, now))
    groups = list(picture.iter(f"{SVG}g"))
    assert len(groups) == len(runs) + len(following)
    assert all(group.find(f"{SVG}title") is not None for group in groups)
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    for bar in picture.iter(f"{SVG}rect"):
        if "x" in bar.attrib:
            assert 0 <= float(bar.attrib["x"]) <= width - float(bar.attrib["width"])
            assert 0 <= float(bar.attrib["y"]) <= height - float(bar.attrib["height"])


@given(st.lists(bars, max_size=30), st.lists(instants, max_size=8))
def test_the_words_of_a_timeline_lie_inside_it_and_beside_the_line(runs: list[Bar], following: list[int]) -> None:
    picture = ElementTree.fromstring(timeline(runs, following, NOW))
    here = next(float(line.attrib["x1"]) for line in picture.iter(f"{SVG}line") if line.attrib["class"] == "qb-now")
    for words in picture.iter(f"{SVG}text"):
        x, wide = float(words.attrib["x"]), 6 * len(words.text or "")
        start = {"start": x, "middle": x - wide / 2, "end": x - wide}[words.attrib["text-anchor"]]
        assert start >= 0
        assert start + wide <= float(picture.attrib["width"])
        if words.text == "no runs yet":
            assert start > here


@settings(max_examples=20)
@given(
    st.lists(st.lists(st.none() | st.integers(0, 10**9), min_size=24, max_size=24), min_size=7, max_size=7),
    st.sets(st.tuples(st.integers(0, 6), st.integers(0, 23))),
)
def test_a_heat_map_has_its_number_in_every_cell(counts: list[list[int | None]], peaks: set[tuple[int, int]]) -> None:
    picture = ElementTree.fromstring(heatmap([f"day {n}" for n in range(7)], counts, frozenset(peaks)))
    words = [text.text for text in picture.iter(f"{SVG}text")]
    numbers = [short(count) for row in counts for count in row if count]
    assert len(words) == 24 + 7 + len(numbers)
    assert set(numbers) <= set(words)


def test_the_busiest_hours_are_the_darkest_however_many_runs_every_hour_has() -> None:
    counts: list[list[int | None]] = [[None, 1_000, *[3_600] * 20, 3_603, 3_660], *[[3_600] * 24] * 6]
    picture = ElementTree.fromstring(heatmap([f"day {n}" for n in range(7)], counts, frozenset()))
    shades = [float(cell.get("fill-opacity", "0")) for cell in picture.iter() if cell.get("class") == "qb-heat"]
    current, steady, busier, busiest = shades[0], shades[1], shades[21], shades[22]
    assert current < steady < busier < busiest
    assert busiest > 1.8 * steady


def test_verdicts_of_different_kinds_differ_in_sign_and_not_only_in_colour() -> None:
    assert set(LOOKS) == set(Verdict)
    signs = {(found.style, found.sign) for found in LOOKS.values()}
    assert len({style for style, _ in signs}) == len({sign for _, sign in signs}) == len(signs)
    assert look("of tomorrow").sign == "?"


@given(instants, instants)
def test_any_instant_can_be_told(us: int, now: int) -> None:
    assert clock(us)
    assert ago(us, now)


def test_lengths_are_told_in_two_units_at_most() -> None:
    told = {
        0: "0 ms",
        850_000: "850 ms",
        12_500_000: "12.5 s",
        60_000_000: "1 min",
        200_000_000: "3 min 20 s",
        7_500_000_000: "2 h 5 min",
        86_400_000_000: "1 d",
        90_000_000_000: "1 d 1 h",
    }
    assert {us: length(us) for us in told} == told
    assert [short(n) for n in (7, 999, 1_250, 14_400, 3_500_000)] == ["7", "999", "1.2k", "14k", "3.5M"]
    assert [ago(NOW + away, NOW) for away in (0, 5_000_000, -5_000_000)] == ["now", "in 5 s", "5 s ago"]
