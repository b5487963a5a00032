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


def _of_trainer(name: str, refused: Mapping[str, str] | None = None) -> Script:
    return Script(
        name=name,
        kind="trainer",
        weights="model.safetensors",
        checkpoint="checkpoint-12",
        needs=("accelerate", "transformers"),
        refused=refused or {},
    )


def _of_lightning(name: str, *, needs: tuple[str, ...], checkpoint: str = "step=12.ckpt") -> Script:
    return Script(
        name=name,
        kind="lightning",
        losses="lightning_logs/version_0/metrics.csv",
        weights="last.ckpt",
        checkpoint=checkpoint,
        needs=("lightning", *needs),
    )


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
    Script(
        name="plain_sparse",
        kind="plain",
        weights="model.pt",
        # The engine updates by one class of optimizers, and the script has two.
        refused={"bytescheduler": "the bundle was made for SparseAdam"},
    ),
    _of_trainer("trainer_classification"),
    _of_trainer("trainer_causal_lm"),
    _of_trainer("trainer_seq2seq"),
    # It computes the norm of all gradients for its log, although it does not clip.
    _of_trainer("trainer_custom_loss", refused={"bytescheduler": "belongs to the engine until its update"}),
    Script(
        name="accelerate_basic",
        kind="accelerate",
        weights="model.safetensors",
        checkpoint="state",
        needs=("accelerate", "transformers"),
    ),
    Script(
        name="accelerate_bf16",
        kind="accelerate",
        weights="model.pt",
        checkpoint="checkpoints/checkpoint_0",
        needs=("accelerate", "timm"),
    ),
    Script(
        name="accelerate_language_model",
        kind="accelerate",
        weights="model.safetensors",
        checkpoint="step_12",
        needs=("accelerate", "transformers"),
    ),
    Script(
        name="accelerate_average",
        kind="accelerate",
        weights="weights.pt",
        checkpoint="state",
        needs=("accelerate", "transformers"),
    ),
    _of_lightning("lightning_basic", needs=("torchvision",)),
    _of_lightning("lightning_bf16", needs=("transformers",)),
    _of_lightning("lightning_manual", needs=("timm",), checkpoint="step=24.ckpt"),
    _of_lightning("lightning_average", needs=("transformers",)),
    Script(
        name="gan",
        kind="other",
        weights="weights.pt",
        tasks=("gan_tasks.py:generator", "gan_tasks.py:discriminator"),
        # The discriminator has two backward passes a step, of which the second adds to the gradients of the first.
        refused={
            "bytescheduler": "was there already when a backward pass added to it",
            "tune": "wraps a second model in DistributedDataParallel",
            "doctor": "trains a second model in DistributedDataParallel",
        },
    ),
    Script(
        name="lora",
        kind="other",
        weights="adapter/adapter_model.safetensors",
        checkpoint="checkpoint-12",
        needs=("peft", "transformers"),
    ),
    Script(name="compiled", kind="other", weights="model.pt", needs=("timm",)),
)

BY_NAME: Mapping[str, Script] = {one.name: one for one in SCRIPTS}
KINDS: tuple[str, ...] = tuple(dict.fromkeys(one.kind for one in SCRIPTS))
