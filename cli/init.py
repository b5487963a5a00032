"""`autosync init`: draft a cluster file from a few answers, check it, and offer to measure the cluster."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from autosync import units
from autosync.cli.operands import tell_of_idle_gpus
from autosync.cli.output import force_option, json_option, note, print_json, print_text, refuse_overwrite
from autosync.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autosync.launchers.node_check import ClusterCheck
    from autosync.specs.cluster import BackendName, ClusterSpec
    from autosync.specs.cluster_draft import ClusterAnswers, DraftLauncher

LAUNCHERS: dict[str, str] = {
    "ssh": "hosts that ssh reaches",
    "slurm": "nodes of Slurm",
    "local": "this machine alone",
    "testbed": "hosts emulated on this machine",
}

NEEDLESS: dict[str, tuple[tuple[str, ...], str]] = {
    "local": (("hosts", "bandwidth", "python"), "the cluster is this machine alone, which has no links between nodes"),
    "testbed": (("python",), "emulated hosts run the Python of this command"),
}
"""The options that a launcher has no use for, and why."""

T = TypeVar("T")


@click.command(
    epilog="""\b
Examples:
  autosync init
  autosync init --launcher ssh --hosts "gpu1 gpu2" --devices 4 --bandwidth "25 Gbit/s" --yes
  autosync init --launcher slurm --hosts "gpu[01-08]" --bandwidth "100 Gbit/s" -o lab.yaml --no-check --no-probe
  autosync init --launcher local --devices 2 --yes"""
)
@click.option("--launcher", type=click.Choice(list(LAUNCHERS)), help="How the machines are reached.")
@click.option("--hosts", metavar="HOSTS", help='The hosts: "gpu1 gpu2" or "gpu[01-04]"; with testbed a number.')
@click.option("--devices", type=click.IntRange(1), help="Ranks on each node: one for each GPU, or one.")
@click.option(
    "--bandwidth", metavar="RATES", help="Rate of each link, such as 10 Gbit/s: one, or one a host with commas."
)
@click.option("--python", metavar="PATH", help="Python on the nodes, if its path differs from the one here.")
@click.option("--backend", type=click.Choice(["gloo", "nccl"]), help="The backend.  [default: gloo]")
@click.option("--check/--no-check", default=None, help="Check every node.  [default: ask]")
@click.option("--probe/--no-probe", default=None, help="Measure the links and keep the result.  [default: ask]")
@click.option("--yes", is_flag=True, help="Ask nothing: take the default of each question.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default="cluster.yaml",
    show_default=True,
    help="Write the cluster file here.",
)
@force_option
@json_option
def init(
    *,
    launcher: DraftLauncher | None,
    hosts: str | None,
    devices: int | None,
    bandwidth: str | None,
    python: str | None,
    backend: BackendName | None,
    check: bool | None,
    probe: bool | None,
    yes: bool,
    output: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Draft a cluster file: asks for hosts, ranks and links, checks every node, and offers to measure the links.

    What an option gives is not asked. The exit code is 1 if the check finds a node on which no trial could succeed; the
    file is written all the same.
    """
    from autosync.specs.cluster import describe
    from autosync.specs.cluster_draft import draft_cluster
    from autosync.specs.cluster_file import save_cluster

    refuse_overwrite(output, force=force)
    ask = _Questions(asks=not yes)
    given = {"launcher": launcher, "hosts": hosts, "devices": devices, "bandwidth": bandwidth, "python": python}
    spec = draft_cluster(_answers(ask, output.stem, given, backend or "gloo"))
    save_cluster(output, spec)
    if not as_json:
        print_text(describe(spec))
    note(f"wrote {output}")
    _tell_of_devices(spec, output, is_named=backend is not None)
    checked = _check(spec, output) if ask.agrees("Check every node now?", "--check", check) else None
    is_probed = False
    if (checked is None or not checked.errors) and len(spec.nodes) > 1:
        how_long = units.format_time(15 + 8 * len(spec.nodes))
        if ask.agrees(f"Measure the links now? It takes about {how_long} and fills them.", "--probe", probe):
            _probe(spec, output)
            is_probed = True
    if as_json:
        print_json(_fields(output, checked, is_probed=is_probed))
    if checked is not None and checked.errors:
        raise click.exceptions.Exit(1)
    note(f"next: autosync tune MODEL --cluster {output}")


class _Questions:
    """Asks on stderr and reads answers from stdin; without `asks`, it takes the default of each question."""

    def __init__(self, *, asks: bool) -> None:
        self._asks = asks

    def text(
        self,
        question: str,
        option: str,
        given: object,
        *,
        default: str | None,
        choices: Mapping[str, str] | None = None,
    ) -> str:
        """Return the value of the option, else the answer to the question; `choices` are listed before it."""
        if given is not None:
            return str(given)
        if not self._asks:
            if default is None:
                raise _missing(option, "with --yes nothing is asked, and there is no default")
            return default
        for name, what in (choices or {}).items():
            note(f"  {name:8} {what}")
        return self._answered(option, lambda: str(click.prompt(question, default=default, err=True)))

    def agrees(self, question: str, option: str, given: bool | None) -> bool:  # noqa: FBT001 - the value of an option
        """Return the value of the option, else whether the user agrees; without questions it is agreed."""
        if given is not None:
            return given
        if not self._asks:
            return True
        return self._answered(option, lambda: click.confirm(question, default=True, err=True))

    def _answered(self, option: str, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except click.Abort as abort:
            if isinstance(abort.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from abort
            raise _missing(option, "the input ended before the question was answered") from abort


def _missing(option: str, rule: str) -> InputError:
    return InputError(f"{option} is missing", rule=rule, hint="see autosync init --help")


def _answers(ask: _Questions, name: str, given: dict[str, Any], backend: BackendName) -> ClusterAnswers:
    """Return the answers, of which each is asked if its option is not given."""
    from autosync.specs.cluster_draft import ClusterAnswers
    from autosync.specs.host_lists import expand_hosts

    launcher = given["launcher"] or _launcher(ask)
    options, rule = NEEDLESS.get(launcher, ((), ""))
    if needless := [f"--{option}" for option in options if given[option] is not None]:
        what = f"{' and '.join(needless)} with the launcher {launcher}"
        raise InputError(what, rule=rule, hint=f"leave out {' and '.join(needless)}")
    if launcher == "local":
        question = "How many ranks (processes) does this machine run?"
        devices = ask.text(question, "--devices", given["devices"], default="2")
        return ClusterAnswers(name=name, launcher="local", devices=_number(devices, "--devices"), backend=backend)
    if launcher == "testbed":
        number = ask.text("How many hosts are emulated?", "--hosts", given["hosts"], default="4")
        hosts = tuple(f"host-{place}" for place in range(_number(number, "--hosts")))
    else:
        allocated = os.environ.get("SLURM_JOB_NODELIST") if launcher == "slurm" else None
        question = "Hosts, such as gpu1 gpu2 or gpu[01-04]"
        hosts = expand_hosts(ask.text(question, "--hosts", given["hosts"], default=allocated))
    question = "Ranks (processes) on each node: one for each GPU, or 1"
    devices = ask.text(question, "--devices", given["devices"], default="1")
    question = "Rate of each node's link; a rough one will do if you measure it"
    rates = ask.text(question, "--bandwidth", given["bandwidth"], default="10 Gbit/s")
    python = None
    if launcher != "testbed":
        python = ask.text("Python on the nodes", "--python", given["python"], default=sys.executable)
    return ClusterAnswers(
        name=name,
        launcher=launcher,
        hosts=hosts,
        devices=_number(devices, "--devices"),
        bandwidths=tuple(_rate(rate) for rate in rates.split(",")),
        backend=backend,
        python=None if python == sys.executable else python,
    )


def _launcher(ask: _Questions) -> DraftLauncher:
    """Ask how the machines are reached."""
    default = "slurm" if "SLURM_JOB_ID" in os.environ else "ssh"
    answer = ask.text("Where do ranks run?", "--launcher", None, default=default, choices=LAUNCHERS)
    if answer not in LAUNCHERS:
        raise InputError(f"{answer!r} is none of these", rule=f"one of {', '.join(LAUNCHERS)}")
    launcher: Any = answer
    return launcher  # type: ignore[no-any-return]


def _number(text: str, option: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:9]) > 0):
        raise InputError(f"{option}: {text!r} is no number of them", rule="a whole number above 0")
    return int(text)


def _rate(text: str) -> float:
    try:
        return units.parse_rate(text.strip())
    except ValueError as error:
        rule = "one rate for all hosts, or one for each, with commas"
        raise InputError(f"--bandwidth: {error}", rule=rule) from error


def _tell_of_devices(spec: ClusterSpec, output: Path, *, is_named: bool) -> None:
    """Tell what the file leaves out about GPUs: that there are some, unless the backend was named, or their links."""
    if not is_named:
        tell_of_idle_gpus(spec)
    if spec.backend == "nccl" and any(node.devices > 1 for node in spec.nodes):
        note(f"GPUs of a node count as linked by PCIe; for NVLink, write intra_bandwidth: 300 GB/s (or so) in {output}")


def _check(spec: ClusterSpec, output: Path) -> ClusterCheck:
    """Check every node, and say what was found."""
    from autosync.launchers.node_check import check_nodes

    note("checking every node")
    with tempfile.TemporaryDirectory(prefix="autosync-check-") as folder:
        checked = check_nodes(spec, Path(folder))
    for line in checked.table().splitlines():
        note(line)
    for finding in checked.findings:
        note(f"{finding.severity}: {finding}")
    if checked.errors:
        note(f"mend the nodes or the file, then: autosync cluster check {output}")
    return checked


def _probe(spec: ClusterSpec, output: Path) -> None:
    """Measure the cluster, and write the file again with what was measured."""
    from autosync.cli.cluster import probe_limit
    from autosync.specs.cluster_file import save_cluster
    from autosync.trials.probe import ProbeSettings
    from autosync.trials.probe import probe as run_probe

    probed = run_probe(spec, settings=ProbeSettings(timeout_seconds=probe_limit(spec)), progress=note)
    save_cluster(output, probed.cluster)
    for finding in probed.findings:
        note(f"warning: {finding}")
    note(f"wrote {output} with what was measured")


def _fields(output: Path, checked: ClusterCheck | None, *, is_probed: bool) -> dict[str, object]:
    from autosync.specs.cluster_file import dump_cluster, load_cluster

    findings = () if checked is None else checked.findings
    return {
        "schema": "autosync.init/1",
        "output": str(output),
        "cluster": dump_cluster(load_cluster(output)),
        "is_checked": checked is not None,
        "findings": [{"node": one.node, "severity": one.severity, "words": one.words} for one in findings],
        "is_probed": is_probed,
    }
