"""`autosync predict`: how training scales to more nodes, without renting them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from autosync import units
from autosync.cli.operands import CLUSTER_HELP, model_and_cluster
from autosync.cli.options import seed_option
from autosync.cli.output import json_option, note, print_json, print_text

if TYPE_CHECKING:
    from autosync.scaling.price import Price

_RULE = "write numbers of nodes such as 1,2,4,8"
_MOST_SIZES = 64


def _numbers(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Parse the numbers of nodes."""
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not (word.isascii() and word.isdigit() and 0 < len(word) < 6 and int(word))]
    if wrong or len(words) > _MOST_SIZES:
        what = f"{wrong[0]!r} is no number of nodes" if wrong else f"{len(words)} sizes are more than {_MOST_SIZES}"
        raise click.BadParameter(f"{what} ({_RULE})")
    return tuple(sorted({int(word) for word in words}))


def _rate(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """Parse a link's rate."""
    try:
        return None if text is None else units.parse_rate(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _price(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Price | None:
    """Parse a price."""
    from autosync.scaling.price import parse_price

    try:
        return None if text is None else parse_price(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(
    epilog="""\b
Examples:
  autosync predict resnet50 --cluster measured.yaml --nodes 1,2,4,8,16
  autosync predict model.py --cluster measured.yaml --nodes 2,4,8 --price "3.20 USD/h"
  autosync predict resnet50 --cluster 4-hosts --nodes 4,8 --link 25Gbit/s --json"""
)
@click.argument("model_target", metavar="MODEL")
@click.option("--cluster", "cluster_target", metavar="CLUSTER", required=True, help=CLUSTER_HELP)
@click.option(
    "--nodes",
    "num_nodes",
    default="1,2,4,8,16",
    show_default=True,
    callback=_numbers,
    metavar="N,N,...",
    help="Numbers of nodes that train.",
)
@click.option("--link", callback=_rate, metavar="RATE", help="Predict for links of this rate, such as 25Gbit/s.")
@click.option("--price", callback=_price, metavar="PRICE", help="Price of a node, such as 3.20/h: adds the cost.")
@seed_option
@json_option
def predict(
    *,
    model_target: str,
    cluster_target: str,
    num_nodes: tuple[int, ...],
    link: float | None,
    price: Price | None,
    seed: int,
    as_json: bool,
) -> None:
    """Predict step time, throughput, efficiency and cost of MODEL on more or fewer nodes than CLUSTER has.

    Stock DDP is predicted, and the fastest strategy that a search by simulation finds at each size. Nothing is started
    on the cluster. Measure the cluster first, with `autosync cluster probe`: two nodes are enough.
    """
    from autosync.scaling.fields import fields
    from autosync.scaling.predict import predict_scaling
    from autosync.scaling.wording import describe
    from autosync.simulators.compile_notice import compiling_is_told

    model, cluster = model_and_cluster(model_target, cluster_target)
    with compiling_is_told(note, meanwhile=True):
        found = predict_scaling(model, cluster, num_nodes, link=link, price=price, seed=seed, progress=note)
    if as_json:
        print_json(fields(found))
    else:
        print_text(describe(found))
