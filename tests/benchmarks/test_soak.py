import pytest
from soak import relative_rise


def test_the_rise_is_fitted_without_the_first_tenth():
    # warm-up jumps from 10 to 100 MB; then 100 MB at 10 s to 109 MB at 100 s: 9 %
    samples = [(0.0, 10.0), (9.0, 10.0), *((float(second), 99.0 + second / 10) for second in range(10, 101))]
    rise, span = relative_rise(samples)
    assert rise == pytest.approx(0.09)
    assert span == pytest.approx(0.09)


def test_oscillating_memory_does_not_rise():
    samples = [(float(second), 100.0 + second % 2) for second in range(1001)]
    rise, span = relative_rise(samples)
    assert abs(rise) < 1e-4
    assert span == pytest.approx(0.01, rel=0.01)
