"""The scripts of the suite: where each writes what, and which uses of autosync are refused for it, with which words.

A script takes `--output FOLDER`, `--steps N` and `--resume CHECKPOINT`. It logs a loss for each step, saves a
checkpoint halfway, and its weights at the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS_FOLDER = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script of the suite. The names of files are patterns within its output folder.

    `tasks` are the tasks from which bundles are made where a script cannot be observed, because it trains several
    models; `refused` has the words of each refusal, by cell.
    """

    name: str
    kind: str
    weights: str
    losses: str = "log.jsonl"
    checkpoint: str = "checkpoint.pt"
    needs: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The script's file."""
        return SCRIPTS_FOLDER / f"{self.name}.py"


SCRIPTS: tuple[Script, ...] = (
    Script(name="plain_torchrun", kind="plain", weights="model.pt", needs=("torchvision",)),
    Script(name="plain_bf16_clipping", kind="plain", weights="model.pt", needs=("timm",)),
    Script(
        name="plain_checkpoints",
        kind="plain",
        weights="model.pt",
        checkpoint="checkpoint-00012.pt",
        needs=("transformers",),
    ),
    Script(name="plain_accumulation", kind="plain", weights="model.pt", needs=("timm",)),
    Script(name="plain_sparse", kind="plain", weights="model.pt"),
)

BY_NAME: Mapping[str, Script] = {one.name: one for one in SCRIPTS}
KINDS: tuple[str, ...] = tuple(dict.fromkeys(one.kind for one in SCRIPTS))
