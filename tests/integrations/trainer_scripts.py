"""Scripts for trainers, as a user writes them; each writes down the weights it ends with."""

import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn

import worker_agent

SAMPLES, BATCH, WIDTH = 240, 24, 16
ITERATIONS = 60
EPOCHS = (ITERATIONS - 0.5) * BATCH / SAMPLES  # sums of progress are not exact


class Numbers(torch.utils.data.Dataset):
    """Inputs and labels, the same in every process."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
        self.labels = torch.randint(0, 3, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int):
        time.sleep(float(os.environ.get("PACE", "0")))
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3)).double()


def hugging_face(job) -> nn.Module:
    from transformers import Trainer, TrainingArguments

    from worker_agent.integrations.transformers import connect

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, inputs, labels):
            logits = self.network(inputs)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=BATCH,
        num_train_epochs=EPOCHS,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        eval_strategy="steps",
        eval_steps=10,
        disable_tqdm=True,
        seed=9,
    )
    trainer = Trainer(Model(), arguments, train_dataset=Numbers(), eval_dataset=Numbers())
    connect(trainer, job)
    trainer.train()
    if job.is_leader:
        assert trainer.state.global_step == job.iteration
    return trainer.model


def lightning_trainer(job) -> nn.Module:
    import lightning

    from worker_agent.integrations.lightning import SessionCallback, session_loader

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.network(batch["inputs"]), batch["labels"])

        def validation_step(self, batch, _):
            logits = self.network(batch["inputs"])
            self.log("val_loss", nn.functional.cross_entropy(logits, batch["labels"]))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model = Model()
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=BATCH)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        val_check_interval=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[SessionCallback(job)],
    )
    validation = torch.utils.data.DataLoader(Numbers(), batch_size=SAMPLES)
    trainer.fit(model, session_loader(job, loader, epochs=EPOCHS, seed=9), validation)
    return model


def keras_fit(job) -> nn.Module:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    from worker_agent.integrations.keras import KerasSessionCallback, session_loader

    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(WIDTH, activation="tanh"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.01, clipnorm=1.0), loss)
    numbers = Numbers()
    loader = torch.utils.data.DataLoader(numbers, batch_size=BATCH, collate_fn=pairs_of)
    callback = KerasSessionCallback(job)
    model.fit(
        session_loader(job, model, loader, epochs=EPOCHS, seed=9),
        steps_per_epoch=10,
        epochs=callback.epochs,
        validation_data=(numbers.inputs.numpy(), numbers.labels.numpy()),
        verbose=0,
        callbacks=[callback],
    )
    return model


def pairs_of(rows: list[dict[str, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels of rows, as Keras takes them."""
    return (
        torch.stack([row["inputs"] for row in rows]),
        torch.stack([row["labels"] for row in rows]),
    )


TRAINERS = {"transformers": hugging_face, "lightning": lightning_trainer, "keras": keras_fit}


def main(name: str) -> None:
    """Train, and write down what a test compares."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with worker_agent.session() as job:
        model = TRAINERS[name](job)
    trained = [each for each in model.parameters() if each.requires_grad]
    weights = torch.cat([each.detach().flatten() for each in trained]).tolist()
    facts = {"iteration": job.iteration, "is_leader": job.is_leader, "weights": weights}
    worker = os.environ.get("SCAVENGER_WORKER", "alone")
    Path(f"{worker}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1])
