"""accelerate with parameters that are never used (BERT's pooler), and an exponential average of the weights."""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, set_seed
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertModel


class Encoder(nn.Module):
    """The mean of BERT's last hidden states, and a regression on it. The pooler gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = BertModel(
            BertConfig(
                vocab_size=40,
                hidden_size=48,
                num_hidden_layers=2,
                num_attention_heads=3,
                intermediate_size=96,
                max_position_embeddings=10,
            )
        )
        self.head = nn.Linear(48, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.bert(input_ids=words).last_hidden_state.mean(1)).squeeze(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    handler = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[handler])
    set_seed(9)
    words = torch.randint(40, (96, 10), generator=torch.Generator().manual_seed(4))
    loader = DataLoader(TensorDataset(words, words.float().mean(1) / 20 - 1), batch_size=12, shuffle=True)
    model = Encoder()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.RAdam(model.parameters(), lr=2e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(average)

    args.output.mkdir(parents=True, exist_ok=True)
    step = 0
    if args.resume:
        accelerator.load_state(args.resume)
        step = args.steps // 2
    while step < args.steps:
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(accelerator.unwrap_model(model))
            step += 1
            if accelerator.is_main_process:
                with (args.output / "log.jsonl").open("a") as log:
                    log.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
        if step == args.steps // 2:
            accelerator.save_state(args.output / "state")

    weights = {"model": accelerator.unwrap_model(model).state_dict(), "average": average.module.state_dict()}
    accelerator.save(weights, args.output / "weights.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
