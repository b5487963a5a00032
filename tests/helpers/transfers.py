"""Transfers by themselves, as a plan has them without anything around them."""

from autosync.plan.types import Algorithm, Collective, Transfer


def plain_transfer(
    collective: Collective, algorithm: Algorithm, group: tuple[int, ...], num_elements: int, *, item_bytes: int = 4
) -> Transfer:
    """A transfer among the ranks of a group, which waits for nothing."""
    return Transfer(
        collective=collective,
        algorithm=algorithm,
        groups=(group,),
        regions=(0,),
        num_elements=num_elements,
        max_elements=num_elements,
        item_bytes=item_bytes,
        within=(),
        lane=0,
        priority=0,
        message=0,
        after=(),
    )
