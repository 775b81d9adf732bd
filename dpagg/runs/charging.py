"""One release and its ledger: charged before the first draw, publishing before a file is written, settled after."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from dpagg.accounting import Event
from dpagg.config import AggregateConfig, PrivateFitConfig
from dpagg.errors import ConfigError, PrivacyError
from dpagg.kernels.streams import Secret
from dpagg.ledger import Book, FileStore, Ledger, Receipt, Request, Store, sharing, spent
from dpagg.ledger.entries import PUBLISHING, SETTLED
from dpagg.runs.fit_terms import fit_unit
from dpagg.runs.monitoring import Monitor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
_MOST_STEPS = 10  # of the figure on a release's page: each is a composition


@dataclass
class Account:
    """The account of one release or fit; without a ledger in the configuration it does nothing.

    Attributes
    ----------
    ledger : Ledger or None
        Where it is kept.
    config : AggregateConfig or PrivateFitConfig
        Of the run.
    release_id : str
        Name of the request.
    monitor : Monitor
        Is told how far the run has come.
    """

    ledger: Ledger | None
    config: AggregateConfig | PrivateFitConfig
    release_id: str = ""
    monitor: Monitor = field(default_factory=Monitor)
    _receipt: Receipt | None = None
    _ahead: Thread | None = None

    @classmethod
    def opened(
        cls,
        spark: SparkSession,
        config: AggregateConfig | PrivateFitConfig,
        monitor: Monitor | None = None,
    ) -> Account:
        """Return the account of a run; the ledger is read ahead while the run looks at features."""
        section = config.ledger
        ledger = None if section is None else Ledger(ledger_store(spark, section.path))
        account = cls(ledger, config, monitor=Monitor() if monitor is None else monitor)
        if ledger is not None:
            account._ahead = Thread(target=ledger.read_ahead, daemon=True)
            account._ahead.start()
        return account

    @classmethod
    def in_memory(cls, config: AggregateConfig | PrivateFitConfig) -> Account:
        """Return the account of a run without Spark; its ledger is a file.

        Raises
        ------
        ConfigError
            If the path is a folder, as that of a Delta table.
        """
        if config.ledger is None:
            return cls(None, config)
        path = Path(config.ledger.path).expanduser()
        if path.is_dir():
            raise ConfigError(
                f"{path} is a folder; the ledger of a table in memory is a file",
                path="ledger.path",
                remedy="Name a file. A Delta ledger is charged by releases of Spark DataFrames and by dpagg aggregate.",
            )
        return cls(Ledger(FileStore(path)), config)

    def name(self, release_id: str) -> None:
        """Take the name of the request, once it is known."""
        self.release_id, section, privacy = release_id, self.config.ledger, self.config.privacy
        monitor = self.monitor
        monitor.release_id, monitor.epsilon, monitor.delta = release_id, privacy.epsilon, privacy.delta
        if section is not None:
            monitor.dataset, monitor.partition = section.dataset, section.partition

    @property
    def unit(self) -> str:
        """What the release protects, as its certificate and its budget call it."""
        if isinstance(self.config, PrivateFitConfig):
            return fit_unit(self.config)
        unit = self.config.privacy.unit
        return "one label" if unit is None else f"all labels of one {unit.column}"

    def charge(self, event: Event, secret: Secret) -> None:
        """Reserve what the release costs; no label has been read by then.

        Raises
        ------
        PrivacyError
            If it is over the budget, or the release protects nothing or something else.
        """
        section, privacy = self.config.ledger, self.config.privacy
        if self.ledger is None or section is None:
            return
        if not secret.is_private or event.delta(privacy.epsilon) >= 1.0:
            raise PrivacyError(
                "this release protects nobody (public seed, or plain sums); no budget allows it",
                path="ledger",
                remedy="Take the ledger section out for a test on data that need no protection.",
            )
        budget = section.budget
        self.monitor.enter("charge")
        if self._ahead is not None:
            self._ahead.join()
        self._receipt = self.ledger.charge(
            Request(
                dataset=section.dataset,
                partition=section.partition,
                release_id=self.release_id,
                event=event,
                unit=self.unit,
                # A Gaussian release is for any neighbours; the configuration says which are meant.
                adjacency=getattr(privacy, "adjacency", event.adjacency),
                epsilon=privacy.epsilon,
                delta=privacy.delta,
                budget_epsilon=None if budget is None else budget.epsilon,
                budget_delta=None if budget is None else budget.delta,
                disjoint=section.disjoint,
            )
        )
        if self.ledger.seen.entries[0].run == self.ledger.seen.entries[-1].run and self._receipt.is_new:
            _LOG.warning("the ledger at %s is new: what was released before it counts for nothing here", section.path)
        _LOG.info("charged as entry %d%s", self._receipt.number, "" if self._receipt.is_new else " by an earlier run")
        self.monitor.enter("draw")

    def publishing(self) -> dict[str, Any]:
        """Say that files may come into being, and return what the certificate says of the ledger.

        Raises
        ------
        PrivacyError
            If another run publishes this release.
        """
        if self.ledger is None or self._receipt is None:
            return {}
        self.monitor.enter("publish")
        entry = self.ledger.publishing(self._receipt)
        book = self.ledger.seen
        terms = book.terms[entry.dataset]
        return {
            "ledger": {
                "ledger": book.entries[0].body["ledger"],
                "dataset": entry.dataset,
                "partition": entry.partition,
                "disjoint_partitions": terms.disjoint,
                "budget": {"epsilon": terms.epsilon, "delta": terms.delta},
                "charge": entry.charge,
                "entry": entry.sequence,
                "head": entry.hash,
            }
        }

    def settle(self) -> None:
        """Say that the release is complete."""
        if self.ledger is not None and self._receipt is not None:
            self.monitor.enter("settle")
            self.ledger.settle(self._receipt)
            self._balance(self.ledger.seen)
        self.monitor.enter("done")

    def found(self, certificate: dict[str, Any]) -> None:
        """Settle a release that is published already, if the run that published it ended before it could.

        Raises
        ------
        PrivacyError
            If the ledger doesn't know it: the ledger was put back or exchanged.
        """
        section = self.config.ledger
        self.monitor.enter("found")
        if self.ledger is None or section is None:
            return
        stated = certificate.get("ledger") or {}
        book = self.ledger.book()
        number = stated.get("charge")
        entry = book.entry_of(PUBLISHING, number) if isinstance(number, int) else None
        if entry is None or entry.hash != stated.get("head") or entry.release_id != self.release_id:
            raise PrivacyError(
                f"{self.config.output.path} holds this release, but the ledger does not know it",
                path="ledger.path",
                remedy="The ledger was put back to an earlier state, or is another one. Restore it before anything is "
                "charged to it.",
            )
        if book.entry_of(SETTLED, entry.charge) is None:
            self.ledger.settle(Receipt(entry.dataset, entry.partition, entry.release_id, entry.charge, is_new=False))
        self._balance(self.ledger.seen)

    def burn_down(self) -> list[tuple[str, float, float]]:
        """Return how the budget that this release shares was spent: up to which entry, epsilon since then, and left."""
        section = self.config.ledger
        if self.ledger is None or section is None or section.dataset not in self.ledger.seen.terms:
            return []
        terms, book = self.ledger.seen.terms[section.dataset], self.ledger.seen
        charges = sharing(terms, book.charges(section.dataset), section.partition)
        steps = min(len(charges), _MOST_STEPS)
        found, before = [], 0.0
        # A figure is worth less than the release: what this code can't compose was charged by its claim.
        with suppress(PrivacyError):
            for count in (len(charges) * (i + 1) // steps for i in range(steps)):
                now = max(before, spent(terms, charges[:count]))
                name = f"{charges[count - 1].partition}, entry {charges[count - 1].number}"
                found.append((name, now - before, max(0.0, terms.epsilon - now)))
                before = now
        return found

    def _balance(self, book: Book) -> None:
        """Tell the monitor what the partition of this release has spent."""
        section = self.config.ledger
        if section is not None and section.dataset in book.terms:
            terms, charges = book.terms[section.dataset], book.charges(section.dataset)
            with suppress(PrivacyError):  # an event that only a newer release of dpagg can compose; it was charged
                self.monitor.spent = spent(terms, sharing(terms, charges, section.partition))
                self.monitor.remaining = max(0.0, terms.epsilon - self.monitor.spent)


def ledger_terms(config: AggregateConfig | PrivateFitConfig) -> list[str]:
    """Return what a reviewer has to accept about the budget."""
    section = config.ledger
    if section is None:
        return []
    return [
        f"The ledger's data set {section.dataset!r} and partition {section.partition!r} are what the configuration "
        "calls the input; that the input holds these rows is not checked.",
        "If the ledger has the data set's partitions as disjoint, no unit that the release protects is in two of them. "
        "That is declared, not checked.",
        "The budget over several releases holds if bounds, bags and budgets of each were chosen without looking at "
        "what earlier releases of the same rows brought to light.",
    ]


def ledger_store(spark: SparkSession, path: str) -> Store:
    """Return the store at a path: a file that is there and starts as one is a notebook's, all else a Delta table."""
    from dpagg.spark.files import qualified
    from dpagg.spark.ledger_store import DeltaStore

    local = Path(qualified(spark, path).removeprefix("file:"))
    return FileStore(local) if local.is_file() else DeltaStore(spark, path)
