"""Charging against brute force: many requests, any order, reruns and crashes; and every refusal."""

import dataclasses
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpagg.accounting import CurveTable, GaussianRelease, LabelGaussian
from dpagg.accounting.event import Event
from dpagg.errors import DataError, EnvironmentFault, PrivacyError
from dpagg.ledger import Book, Conflict, FileStore, Ledger, Request, Terms, largest_spend, remaining
from dpagg.ledger.entries import check_chain, parse_entry
from dpagg.runs.ledgers import understated

EPSILON, DELTA = 1.0, 1e-6


class Memory:
    """A store in memory, with a fault at the n-th append if wanted."""

    def __init__(self, entries=()):
        self.entries = tuple(entries)

    def read(self):
        return self.entries

    def append(self, entries, previous):
        if (self.entries[-1].hash if self.entries else "0" * 64) != previous:
            raise Conflict
        self.entries += tuple(entries)


def gaussian(mu):
    return GaussianRelease(mu=mu)


def request(release="r", mu=0.1, partition="a", epsilon=None, **changes):
    event = gaussian(mu)
    epsilon = event.epsilon(1e-7) if epsilon is None else epsilon
    fields = {
        "dataset": "ads", "partition": partition, "release_id": release, "event": event, "unit": "one label",
        "adjacency": "change_one_label", "epsilon": epsilon, "delta": 1e-7,
        "budget_epsilon": EPSILON, "budget_delta": DELTA, "disjoint": True,
    }  # fmt: skip
    return Request(**fields | changes)


def brute_force(out, disjoint):
    """Least delta at the budget's epsilon over every unit: Gaussian releases add their squares."""
    groups = {p: [mu for q, mu in out if q == p or not disjoint] for p, _ in out} if out else {}
    return max((gaussian(math.hypot(*mus)).delta(EPSILON) for mus in groups.values()), default=0.0)


step = st.tuples(
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([0.05, 0.1, 0.15, 0.2]),
    st.integers(0, 5),  # of which request
    st.sampled_from(["crash before", "crash reserved", "crash publishing", "done"]),
)


@settings(max_examples=20, deadline=None)
@given(steps=st.lists(step, max_size=14), disjoint=st.booleans())
def test_no_sequence_of_runs_and_crashes_overspends(steps, disjoint):
    store = Memory()
    out: list[tuple[str, float]] = []  # what left the system, or may have
    pending: dict[str, tuple[str, float]] = {}  # reserved, and went no further
    for partition, mu, name, end in steps:
        release = f"{name}-{partition}"
        if end == "crash before":
            continue
        ledger = Ledger(store)  # each run is a process of its own
        held = [kept for other, kept in pending.items() if other != release]
        possible = brute_force([*out, *held, (partition, mu)], disjoint) <= DELTA
        try:
            receipt = ledger.charge(request(release, mu, partition, disjoint=disjoint))
        except PrivacyError as error:
            # Refused just where brute force refuses, and nothing was written by it.
            assert not possible and "over budget" in str(error)
            continue
        same = pending.get(release) == (partition, mu)
        assert possible or same
        assert receipt.is_new is not same
        pending[release] = (partition, mu)
        if end == "crash reserved":
            continue
        ledger.publishing(receipt)
        out.append(pending.pop(release))
        if end == "done":
            ledger.settle(receipt)
    book = Book(store.read())
    assert sorted((c.partition, c.event.mu) for c in book.charges("ads")) == sorted([*out, *pending.values()])
    assert brute_force([*out, *pending.values()], disjoint) <= DELTA
    if book.terms:
        largest, _where = largest_spend(book.terms["ads"], book.charges("ads"))
        everything = [*out, *pending.values()]
        parts = {p: [mu for q, mu in everything if q == p or not disjoint] for p, _ in everything}
        exact = max((gaussian(math.hypot(*mus)).epsilon(DELTA) for mus in parts.values()), default=0.0)
        assert exact * (1 - 1e-9) <= largest <= exact * 1.002  # one release by itself is read off its table


def test_remaining_is_the_budget_less_the_composition_not_the_sum():
    store = Memory()
    ledger = Ledger(store)
    for i in range(2):
        ledger.charge(request(f"r{i}", 0.1))
    book = Book(store.read())
    terms, charges = book.terms["ads"], book.charges("ads")
    left = remaining(terms, charges, "a")
    assert left == pytest.approx(EPSILON - gaussian(0.1 * math.sqrt(2)).epsilon(DELTA), rel=1e-9)
    assert left > EPSILON - 2 * gaussian(0.1).epsilon(DELTA / 2)
    assert remaining(terms, charges, "another day") == EPSILON


def test_over_budget_says_what_is_left_and_asked():
    ledger = Ledger(Memory())
    ledger.charge(request("r1", 0.2))
    with pytest.raises(PrivacyError, match=r"0\.\d+ of 1 is left.*1 releases; asked is epsilon 1\.") as found:
        ledger.charge(request("r2", 0.25))
    assert "No label was read" in str(found.value)
    ledger.charge(request("r3", 0.2, "b"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"budget_epsilon": 2.0}, "epsilon 2.0 is given"),
        ({"budget_delta": 1e-5}, "delta 1e-05 is given"),
        ({"disjoint": False}, "disjoint False is given"),
        ({"unit": "all labels of one user"}, "protects one label"),
        ({"event": LabelGaussian(label_range=1.0, leverage=0.5, noise_std=100.0)}, None),
    ],
)
def test_other_terms_than_recorded_are_refused(changes, said):
    ledger = Ledger(Memory())
    ledger.charge(request("r1"))
    if said is None:
        ledger.charge(request("r2", **changes))
        return
    with pytest.raises(PrivacyError, match=said):
        ledger.charge(request("r2", **changes))
    ledger.charge(request("r2", budget_epsilon=None, budget_delta=None, disjoint=None))


def test_a_label_release_is_refused_on_a_row_budget():
    ledger = Ledger(Memory())
    ledger.declare(
        Terms(dataset="ads", epsilon=1.0, delta=1e-6, adjacency="zero_out_one_row", unit="one label", disjoint=True)
    )
    labels = LabelGaussian(label_range=1.0, leverage=0.5, noise_std=100.0)
    with pytest.raises(PrivacyError, match="hides no feature"):
        ledger.charge(request("r", event=labels))
    with pytest.raises(PrivacyError, match="hides no feature"):
        ledger.charge(request("r"))  # Gaussian noise serves any neighbours, and this one was meant for labels
    with pytest.raises(ValueError, match="the request for zero_out_one_row"):
        ledger.charge(request("r", event=labels, adjacency="zero_out_one_row"))


def test_no_budget_and_an_event_over_its_claim_are_refused():
    with pytest.raises(PrivacyError, match="no budget yet"):
        Ledger(Memory()).charge(request(budget_epsilon=None))
    with pytest.raises(PrivacyError, match="over budget"):
        Ledger(Memory()).charge(request(mu=0.1, epsilon=0.01))


def test_of_two_runs_under_one_charge_one_publishes():
    store = Memory()
    one, two = Ledger(store), Ledger(store)
    first, second = one.charge(request()), two.charge(request())
    assert first.number == second.number and second.is_new is False
    one.publishing(first)
    assert one.publishing(first).charge == first.number  # a repeated attempt of the same run
    with pytest.raises(PrivacyError, match="another run publishes"):
        two.publishing(second)


def test_a_replaced_charge_cannot_be_published():
    store = Memory()
    one, two = Ledger(store), Ledger(store)
    first = one.charge(request(mu=0.1))
    second = two.charge(request(mu=0.15))
    assert len(Book(store.read()).charges("ads")) == 1
    with pytest.raises(PrivacyError, match="not in the ledger"):
        one.publishing(first)
    two.publishing(second)
    with pytest.raises(PrivacyError, match="not in the ledger"):
        Ledger(store).settle(first)


def test_from_publishing_a_rerun_is_charged_again_and_settling_twice_is_none():
    store = Memory()
    ledger = Ledger(store)
    receipt = ledger.charge(request())
    with pytest.raises(PrivacyError):
        ledger.settle(receipt)
    ledger.publishing(receipt)
    again = Ledger(store).charge(request())
    assert again.is_new and again.number != receipt.number
    assert ledger.settle(receipt) == Ledger(store).settle(receipt)
    assert len(Book(store.read()).charges("ads")) == 2


def test_what_could_not_be_stored_is_not_there_when_the_same_run_asks_again():
    class Failing(Memory):
        fails = False

        def append(self, entries, previous):
            if self.fails:
                raise EnvironmentFault("full")
            super().append(entries, previous)

    store = Failing()
    ledger = Ledger(store)
    receipt = ledger.charge(request())
    store.fails = True
    for _ in range(2):
        with pytest.raises(EnvironmentFault):
            ledger.publishing(receipt)
    store.fails = False
    ledger.publishing(receipt)
    assert [entry.kind for entry in store.read()][-2:] == ["reserved", "publishing"]


def test_who_is_always_slower_gives_up():
    class Busy(Memory):
        def append(self, entries, previous):
            raise Conflict

    waits = []
    with pytest.raises(EnvironmentFault, match="30 times"):
        Ledger(Busy(), sleep=waits.append).charge(request())
    assert len(waits) == 30 and max(waits) <= 5.0


def charged(count=3):
    store = Memory()
    for i in range(count):
        Ledger(store).charge(request(f"r{i}", partition=f"p{i}"))
    return store.entries


def test_entries_survive_and_any_changed_character_is_noticed():
    entries = charged()
    texts = [entry.text for entry in entries]
    assert tuple(parse_entry(text) for text in texts) == entries
    head = check_chain(entries)
    for line, text in enumerate(texts):
        for place in range(0, len(text), 7):
            changed = text[:place] + ("0" if text[place] != "0" else "1") + text[place + 1 :]
            try:
                found = [*texts[:line], changed, *texts[line + 1 :]]
                assert check_chain(parse_entry(each) for each in found) != head
            except (PrivacyError, DataError):
                pass


@pytest.mark.parametrize("kept", [k for k in itertools.permutations(range(4)) if k != (0, 1, 2, 3)])
def test_entries_out_of_order_are_noticed(kept):
    entries = charged(2)
    with pytest.raises(PrivacyError, match="chain breaks"):
        check_chain([entries[i] for i in kept])


def test_an_unknown_version_says_what_to_do():
    text = charged()[0].text.replace('"version":1', '"version":2')
    with pytest.raises(DataError, match=r"format version 2.*newer one"):
        parse_entry(text)


def test_a_file_keeps_a_ledger(tmp_path):
    path = tmp_path / "folder" / "ledger.jsonl"
    odd = "a\u2028b\n\x85"
    receipt = Ledger(FileStore(path)).charge(request("r1", partition=odd))
    Ledger(FileStore(path)).publishing(receipt)
    book = Ledger(FileStore(path)).book()
    assert book.charges("ads")[0].state == "publishing" and book.charges("ads")[0].partition == odd
    # Two that read the same head: the second one is told.
    head = book.head
    entry = Ledger(FileStore(path))._chained(book, [{"kind": "settled", "dataset": "ads", "charge": receipt.number}])
    FileStore(path).append(entry, head)
    with pytest.raises(Conflict):
        FileStore(path).append(entry, head)
    with path.open("a") as file:
        file.write('{"version":1,"seq')
    with pytest.raises(PrivacyError, match="not readable"):
        Ledger(FileStore(path)).charge(request("r2"))


@pytest.mark.parametrize("fails", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch, fails):
    path = tmp_path / "ledger.jsonl"
    Ledger(FileStore(path)).charge(request("r1"))
    before = path.read_bytes()

    def full(*_arguments, **_more):
        raise OSError(28, "No space left on device")

    target = {"write": "pathlib.Path.open", "fsync": "os.fsync", "replace": "os.replace"}[fails]
    monkeypatch.setattr(target, full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        Ledger(FileStore(path)).charge(request("r2"))
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir() if "unfinished" in file.name] == []
    Ledger(FileStore(path)).charge(request("r2"))


def test_every_event_survives_the_ledger():
    for mu in (0.1, 1 / 3, 1e-7):
        assert Event.from_dict(gaussian(mu).to_dict()) == gaussian(mu)


def test_what_a_charge_costs_can_be_computed_again():
    book = Book(charged())
    assert understated(book) == []
    [(number, charge), *_] = book._charges["ads"].items()
    low = CurveTable(charge.table.step, tuple(0.99 * delta for delta in charge.table.deltas))
    book._charges["ads"][number] = dataclasses.replace(charge, table=low)
    assert understated(book) == [number]


@pytest.mark.parametrize("name", ["2026-11-28 e\u0301", " 2026-11-28  \u00c9 ", "\uff12026-11-28\u00a0\u00e9\u200b"])
def test_partitions_that_look_alike_share_a_budget(name):
    ledger = Ledger(Memory())
    ledger.charge(request("first", mu=0.2, partition="2026-11-28 \u00e9"))
    with pytest.raises(PrivacyError, match="over budget"):
        ledger.charge(request("second", mu=0.2, partition=name))
    ledger.charge(request("third", mu=0.2, partition="2026-11-29 \u00e9"))


def test_a_data_set_that_looks_like_another_has_no_budget_of_its_own():
    ledger = Ledger(Memory())
    ledger.charge(request())
    for charged in (
        lambda: ledger.charge(request("second", dataset="Ads ")),
        lambda: ledger.declare(
            Terms(dataset="ADS", epsilon=1.0, delta=1e-6, adjacency="change_one_label", unit="one label", disjoint=True)
        ),
    ):
        with pytest.raises(PrivacyError, match=r"'ads'.*look alike"):
            charged()
    ledger.charge(request("second", dataset="ads 2"))
