"""`autosync graph`: analyse a model whose graph differs from example to example."""

from __future__ import annotations

from pathlib import Path

import click

from autosync.cli.output import force_option, json_option, note, print_json, print_text, refuse_overwrite


@click.group(epilog="Example: autosync graph analyse examples/graphs/tree_lstm.py")
def graph() -> None:
    """Batch a model whose graph differs from example to example."""


@graph.command(
    epilog="""\b
Examples:
  autosync graph analyse trees.py
  autosync graph analyse trees.py:large --workers 8 -o policy.yaml"""
)
@click.argument("target", metavar="FILE.py[:NAME]")
@click.option(
    "--workers", "num_ranks", default=4, show_default=True, type=click.IntRange(1, 1024), help="Number of ranks."
)
@click.option("--batch-size", type=click.IntRange(1), help="Number of examples in a batch.  [default: the task's]")
@click.option("--batches", "num_batches", default=1, show_default=True, type=click.IntRange(1), help="Batches to run.")
@click.option(
    "--rounds", "num_rounds", default=3, show_default=True, type=click.IntRange(1), help="Runs of each policy."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="POLICY", help="Write the fastest policy.")
@force_option
@json_option
def analyse(
    *,
    target: str,
    num_ranks: int,
    batch_size: int | None,
    num_batches: int,
    num_rounds: int,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Measure how a model's vertices are best batched, and how evenly its examples are dealt to ranks.

    FILE.py has a function graph_task() that returns a GraphTask: model, examples and loss. Each batching policy runs
    the same batches in turn with one vertex after the other, and their results are compared. Measured steps give the
    costs of examples, and the first batch is dealt to ranks by count and by cost.
    """
    from autosync.graphs.analysis import analyse_graphs, analysis_fields, describe_analysis
    from autosync.graphs.load import load_graph_task, running
    from autosync.graphs.policy import write_policy

    refuse_overwrite(output, force=force)
    task = load_graph_task(target)
    with running(target):
        found = analyse_graphs(
            task, num_ranks=num_ranks, num_batches=num_batches, num_rounds=num_rounds, batch_size=batch_size
        )
    if output is not None:
        write_policy(output, found.choice.policy)
        note(f"wrote {output}")
    if as_json:
        print_json(analysis_fields(found))
    else:
        print_text(describe_analysis(found))
