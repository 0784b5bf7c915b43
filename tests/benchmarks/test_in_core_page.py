"""The table of functions in core: its means, what the host binds, and what is bold."""

import json

import pytest

from benchmarks import functions_in_core
from benchmarks.pages import in_core, quoted


def measured(ratio, is_host_bound=False, ours_host=1e-5):
    """A problem for which PyTorch takes 1 ms in the better order."""
    ways = {
        "ours, channels_first": {"median": ratio * 1e-3},
        "PyTorch, channels_first": {"median": 2e-3},
        "PyTorch, channels_last": {"median": 1e-3},
    }
    return {
        "seconds": ways,
        "host, one call": {"ours, channels_first": ours_host, "PyTorch, channels_first": 2e-5},
        "ours over PyTorch": ratio,
        "the host binds": is_host_bound,
    }


@pytest.fixture
def page(tmp_path):
    def made(**problems):
        found = {name.replace("_", " ", 1): each for name, each in problems.items()}
        environment = {"gpu": {"name": "a card"}, "date": "2026-11-27T00:00:00"}
        record = {
            "measurements": {f"VGG-16 64x64, 8x8 {name}": each for name, each in found.items()},
            "environment": environment,
        }
        (tmp_path / "functions_in_core.json").write_text(json.dumps(record))
        return in_core.figures(tmp_path)

    return made


def test_a_function_has_one_row_of_all_its_problems(page):
    text = page(
        float32_pooling_forward=measured(0.5),
        float16_pooling_forward=measured(2.0, True, 3e-5),
        float32_add_tensor=measured(1.3, True),
    )
    assert text.startswith("a card, 2026-11-27.")
    assert "| `pooling_forward` | 2 | 1.00 | 1 | 0.50 | 0.50 | 20 | 20 |" in text
    assert "| `add_tensor` | 1 | **1.30** | 0 | - | - | 10 | 20 |" in text
    assert "| all | 3 | 1.09 | 1 | 0.50 | 0.50 | 10 | 20 |" in text


def test_slow_ones_that_the_host_does_not_bind_are_counted(page):
    both = page(float32_add_tensor=measured(1.3), float16_add_tensor=measured(1.4, ours_host=2e-3))
    assert "Of the 2 that the host does not bind, 2 are above 1.25. In 1 of these" in both
    assert page(float32_add_tensor=measured(1.2)).endswith("0 are above 1.25.")


def test_every_problem_of_the_benchmark_has_a_function():
    torch = pytest.importorskip("torch")
    names = [each.name for each in functions_in_core.problems(torch, True, ["bfloat16"], "cpu")]
    functions = [in_core.function_of(name) for name in names]
    assert "softmax_backward" in functions
    assert len(set(functions)) == len(functions) == 11


def test_without_a_record_it_says_what_measures_it(tmp_path):
    assert "python -m benchmarks.functions_in_core" in in_core.figures(tmp_path)


def test_sentences_quote_its_means():
    quotes = [quote.text() for quote in quoted.QUOTES if quote.page == in_core.PAGE]
    assert len(quotes) == 2
    changed = (quoted.ROOT / in_core.PAGE).read_text("utf-8").replace(quotes[0], "ours is fast")
    assert any(quotes[0] in problem for problem in quoted.problems(in_core.PAGE, changed))
