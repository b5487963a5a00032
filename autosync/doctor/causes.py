"""The table of causes. A new cause is a function from the evidence to a finding, and an entry here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosync.doctor import compute_causes, ddp_causes, link_causes
from autosync.doctor.findings import Judge

_TUNE = "{tune}"
_AGAIN = "{doctor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A possible cause of slow steps.

    `title` names the cause to users, and `advice` says what to do about it. `command` is the next command to type, with
    fields in braces: model, task (the same, where a command needs a task), cluster, tune (a command that tunes model or
    script) and doctor (this command again). `explains` names the more general causes that this cause can explain.
    """

    title: str
    judge: Judge
    advice: str
    command: str
    explains: tuple[str, ...] = ()


COMPUTE = "compute"
EXPOSED = "exposed_communication"

CAUSES: Mapping[str, Cause] = {
    COMPUTE: Cause(
        title="compute-bound",
        judge=compute_causes.computation,
        advice="the model's own computation takes the time: see which modules",
        command="autosync profile {task}",
    ),
    EXPOSED: Cause(
        title="exposed communication",
        judge=link_causes.exposed_communication,
        advice="look for a better way to synchronise",
        command=_TUNE,
    ),
    "slow_link": Cause(
        title="slow link",
        judge=link_causes.slow_link,
        advice="repair the link, or tune for the cluster as it is; first measure all links",
        command="autosync cluster probe {cluster} -o calibrated.yaml",
        explains=(EXPOSED,),
    ),
    "slow_uplink": Cause(
        title="slow uplink",
        judge=link_causes.slow_uplink,
        advice="look for a way to synchronise that sends less between racks",
        command=_TUNE,
        explains=(EXPOSED,),
    ),
    "wrong_interface": Cause(
        title="wrong interface",
        judge=link_causes.wrong_interface,
        advice="set GLOO_SOCKET_IFNAME to the fast interface; then look again",
        command="autosync cluster probe {cluster}",
        explains=(EXPOSED, "slow_link"),
    ),
    "slow_rank": Cause(
        title="slow rank",
        judge=compute_causes.slow_rank,
        advice="see what differs on its node: processors, other programs, its data; then look again",
        command="autosync cluster check {cluster}",
    ),
    "slow_input": Cause(
        title="slow input",
        judge=compute_causes.slow_input,
        advice="raise num_workers of the data loader (autosync input tune finds its settings), or do less between "
        "steps; then look again",
        command=_AGAIN,
    ),
    "other_programs": Cause(
        title="other programs",
        judge=compute_causes.other_programs,
        advice="end the other programs, or keep them off these processors; then look again",
        command=_AGAIN,
    ),
    "bucket_sizes": Cause(
        title="bucket sizes",
        judge=ddp_causes.bucket_sizes,
        advice="let stock DDP's settings be searched",
        command="autosync tune {model} --cluster {cluster} --target ddp -o best.yaml",
        explains=(EXPOSED,),
    ),
    "unused_parameters": Cause(
        title="find_unused_parameters",
        judge=ddp_causes.unused_parameters,
        advice="leave find_unused_parameters=True out if each parameter gets a gradient in every step; then look again",
        command=_AGAIN,
    ),
    "buffer_broadcasts": Cause(
        title="buffer broadcasts",
        judge=ddp_causes.buffer_broadcasts,
        advice="give DDP forward_sync_buffers=False if ranks may keep buffers of their own; then look again",
        command=_AGAIN,
    ),
    "accumulation": Cause(
        title="accumulation",
        judge=ddp_causes.accumulation,
        advice="put all microsteps but the last under `with model.no_sync():`; then look again",
        command=_AGAIN,
        explains=(EXPOSED,),
    ),
}
