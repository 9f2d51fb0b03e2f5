"""The data that come with the package."""

import numpy as np
import pytest

import gradsolve as gs


def test_hudson_bay():
    pelts = gs.datasets.hudson_bay()
    assert np.array_equal(pelts.ts, np.arange(1900, 1921))
    assert pelts.ys.shape == (21, 2)
    # The first and the last row of the published table, and its sums.
    assert pelts.ys[0].tolist() == [30.0, 4.0]
    assert pelts.ys[-1].tolist() == [24.7, 8.6]
    assert np.allclose(pelts.ys.sum(axis=0), [715.7, 423.5])


def test_theophylline():
    data = gs.datasets.theophylline()
    assert data.subject.tolist() == list(range(1, 13))
    assert data.ts.shape == data.ys.shape == (12, 11)
    assert np.all(data.ts[:, 0] == 0)
    assert np.all(np.diff(data.ts) > 0)
    # What R prints for `Theoph`: subject 1, and the ranges of weight and dose.
    assert data.ys[0].tolist() == [
        0.74, 2.84, 6.57, 10.5, 9.66, 8.58, 8.36, 7.47, 6.89, 5.94, 3.28
    ]  # fmt: skip
    assert (data.weight.min(), data.weight.max()) == (54.6, 86.4)
    assert (data.dose.min(), data.dose.max()) == (3.1, 5.86)


def test_indomethacin():
    data = gs.datasets.indomethacin()
    assert data.subject.tolist() == list(range(1, 7))
    assert data.ts.shape == data.ys.shape == (6, 11)
    assert np.array_equal(data.ts[0], [0.25, 0.5, 0.75, 1, 1.25, 2, 3, 4, 5, 6, 8])
    assert np.all(data.ts == data.ts[0])
    assert (data.ys.min(), data.ys.max()) == (0.05, 2.72)  # the range that R gives for `Indometh`


@pytest.mark.parametrize("name", ["hudson_bay", "theophylline", "indomethacin"])
def test_every_field_is_an_array_and_the_source_is_named(name):
    load = getattr(gs.datasets, name)
    for values in load():
        assert isinstance(values, np.ndarray)
        assert np.all(np.isfinite(values))
    assert '"Source"' in load.__doc__
