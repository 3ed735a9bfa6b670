"""Hugging Face: a Trainer with a custom optimizer, whose clip replaces max_grad_norm."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import gradxform as gx

WORDS = torch.arange(128).reshape(16, 8) * 7 % 30
DATA = [{"input_ids": words, "labels": int(words.sum() > 110)} for words in WORDS]


def run(steps: int, resume: str | None = None) -> tuple[Trainer, list[float]]:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=30, **size))
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=1e-2)
    tx = gx.chain(gx.freeze("bert/embeddings/position_embeddings/weight"), gx.clip_global_norm(0.5), gx.ema(0.5))
    handle = gx.torch.attach(optimizer, tx)
    norms = []
    hook = optimizer.register_step_post_hook(
        lambda *_: norms.append(float(gx.global_norm([p.grad for p in model.parameters()])))
    )
    arguments = TrainingArguments(
        "out", max_steps=steps, max_grad_norm=0.0, save_steps=5, logging_steps=5, report_to="none", use_cpu=True,
        disable_tqdm=True, lr_scheduler_type="constant", per_device_train_batch_size=8,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=DATA, optimizers=(optimizer, None))
    trainer.train(resume_from_checkpoint=resume)
    hook.remove()
    assert handle.state[2].count == steps
    return trainer, norms


def main() -> None:
    (whole, norms), (resumed, _) = run(10), run(10, resume="out/checkpoint-5")
    assert max(norms) <= 0.5 + 1e-6
    losses = [row["loss"] for row in whole.state.log_history if "loss" in row]
    assert losses[-1] < losses[0]
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))
