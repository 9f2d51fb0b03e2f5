"""The examples reach the published values."""

import importlib.util
from pathlib import Path

import jax.numpy as jnp
import numpy as np

_EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, _EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG")


def test_lynx_hare(tmp_path, capsys):
    example = load("fit_lynx_hare")
    fit = example.main(steps=250, progress=False, plot=str(tmp_path / "plot.png"))
    fitted = np.concatenate([jnp.exp(fit.system.log_rates), fit.y0])
    published = np.array(list(example.PUBLISHED.values()))
    # A maximum of the likelihood and the mean of a posterior: close, not equal.
    assert np.all(np.abs(fitted / published - 1) < 0.1)
    # Converged, far below what the data can tell (a standard error changes the loss by 0.5).
    assert fit.losses[-50:].max() - fit.loss < 1e-4
    assert is_picture(tmp_path / "plot.png")
    printed = capsys.readouterr().out
    for name in example.PUBLISHED:
        assert name in printed


def test_theophylline(tmp_path, capsys):
    example = load("fit_theophylline")
    fit, fitted, reference = example.main(progress=False, plot=str(tmp_path / "plot.png"))
    assert fitted.shape == reference.shape == (12, 3)
    assert np.all(np.abs(fitted / reference - 1) < 1e-3)
    assert np.all(fitted[:, 0] > fitted[:, 1])  # the side of the start: ka > ke
    # Converged, for every subject.
    assert fit.losses[-50:].max() - fit.loss < 1e-6 * fit.loss
    assert is_picture(tmp_path / "plot.png")
    assert "largest relative difference" in capsys.readouterr().out
