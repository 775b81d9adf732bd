"""Budgets that hold across runs: entries in a hash chain, the policy of what may be spent, and a store to keep them."""

from dpagg.ledger.book import Book
from dpagg.ledger.entries import Entry
from dpagg.ledger.file_store import FileStore
from dpagg.ledger.ledger import Ledger, Receipt, Request
from dpagg.ledger.policy import Charge, Terms, largest_spend, remaining, sharing, spent
from dpagg.ledger.store import Conflict, Store

__all__ = [
    "Book",
    "Charge",
    "Conflict",
    "Entry",
    "FileStore",
    "Ledger",
    "Receipt",
    "Request",
    "Store",
    "Terms",
    "largest_spend",
    "remaining",
    "sharing",
    "spent",
]
