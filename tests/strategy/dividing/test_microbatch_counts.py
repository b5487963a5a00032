"""The numbers of microbatches: divisors of the global batch, enough of them for a stage on each rank."""

from autosync.strategy.dividing.microbatch_counts import count_for, legal_counts
from tests.helpers.staged_models import chain, nodes


def test_few_ranks_have_up_to_64() -> None:
    assert legal_counts(chain(4, batch_size=48), nodes(1, 1)) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]


def test_many_ranks_have_four_for_each_of_them() -> None:
    counts = legal_counts(chain(4, batch_size=32), nodes(*[8] * 9))
    # Interleaved stages need groups of 72.
    assert [count for count in counts if count % 72 == 0] == [72, 144, 288]
    assert count_for(counts, 72) == 288
