"""Reads the tables that come with the package."""

import csv
import importlib.resources

import numpy as np


def read_columns(name: str) -> dict[str, np.ndarray]:
    """The columns of `<name>.csv`, as float64 arrays by their titles."""
    table = importlib.resources.files("gradsolve.datasets") / f"{name}.csv"
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    return {title: np.array([float(row[title]) for row in rows]) for title in rows[0]}


def by_subject(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns as `(subjects, rows)`, subjects in the order of their numbers.

    Every subject of a table must have the same number of rows.
    """
    order = np.argsort(columns["Subject"], kind="stable")
    subjects = np.unique(columns["Subject"]).size
    return {title: values[order].reshape(subjects, -1) for title, values in columns.items()}
