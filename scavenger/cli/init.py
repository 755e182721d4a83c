"""``scavenger init``: writes a job file for a script, and says what to change in the script."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from scavenger.cli.errors import FileInTheWay
from scavenger.cli.output import get_terminal, plain_text

JOB_FILE = "job.yaml"
USUAL_SCRIPTS = ("train.py", "main.py")
OWN_PYTHONS = (".venv/bin/python", "venv/bin/python")
# Where a script does not tell. They make a document that submits; its comments say to check them.
USUAL_BATCH, USUAL_EPOCHS, USUAL_SAMPLES = 32, 30, 50_000
MOST_WORKERS = 4
SIZE_NAMES = {
    "batch": "batch",
    "batch_size": "batch",
    "per_device_train_batch_size": "batch",
    "epochs": "epochs",
    "num_epochs": "epochs",
    "n_epochs": "epochs",
    "max_epochs": "epochs",
    "num_train_epochs": "epochs",
}
# Under any name of the module that they come from, such as nn for torch.nn.
WORDS_OF_PROCESSES = {"DistributedDataParallel", "init_process_group"}
PLAIN_WORD = re.compile(r"(\.{0,2}/|\.)?[A-Za-z_][A-Za-z0-9_./-]*")
# YAML reads these as values of other kinds.
WORDS_OF_YAML = {"true", "false", "yes", "no", "on", "off", "y", "n", "null", ".nan", ".inf"}

ScriptFolderArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="Folder of the script. Default: this one.",
        exists=True,
        file_okay=False,
        show_default=False,
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a job file that is there.")]


@dataclass(frozen=True, slots=True)
class ScriptFacts:
    """What the text of a training script tells.

    Attributes:
        modules: Modules that it imports, and what it names of them, by their full names.
        batch: Its batch size; None where it names none.
        epochs: How many epochs it trains.
        samples: Samples in one epoch, of a script that has a session already.
        uses_adam: Whether it names Adam or a relative of it.
    """

    modules: frozenset[str] = frozenset()
    batch: int | None = None
    epochs: int | None = None
    samples: int | None = None
    uses_adam: bool = False

    @property
    def has_session(self) -> bool:
        """Whether it uses the agent already."""
        return self.uses("worker_agent")

    @property
    def starts_processes(self) -> bool:
        """Whether it trains in several processes by itself, such as with DDP."""
        words = {module.rpartition(".")[2] for module in self.modules}
        return self.uses("torch.distributed", "torch.nn.parallel", "accelerate") or bool(
            words & WORDS_OF_PROCESSES
        )

    @property
    def is_tensorflow(self) -> bool:
        """Whether it trains with TensorFlow; Keras counts, unless it imports PyTorch beside it."""
        is_keras = self.uses("keras", "tf_keras") and not self.uses("torch")
        return is_keras or self.uses("tensorflow")

    def uses(self, *names: str) -> bool:
        """Tell whether it imports or names one of some modules, or a part of one."""
        return any(f"{module}.".startswith(f"{name}.") for module in self.modules for name in names)


def init(
    context: typer.Context, directory: ScriptFolderArgument = Path(), force: ForceOption = False
) -> None:
    """Write job.yaml for the training script of a folder, and show what to change in the script.

    Batch and epochs are read from the script where it names them. Check the other values: each
    has a comment.
    """
    terminal = get_terminal(context)
    script = find_script(directory)
    facts = ScriptFacts() if script is None else read_script(script.read_text(errors="replace"))
    document = write_document(
        folder=directory.resolve().name,
        script=USUAL_SCRIPTS[0] if script is None else script.name,
        python=find_python(directory),
        cores=os.cpu_count() or 1,
        facts=facts,
    )
    file = directory / JOB_FILE
    save_document(file, document, is_forced=force)
    terminal.write_line(str(file))
    if script is None:
        terminal.print_message("There is no train.py yet: name your script in run.command.")
    elif facts.has_session:
        terminal.print_message(f"{script.name} has a session already.")
    if not (facts.has_session or facts.starts_processes):
        terminal.print_message(
            f"\nChange these lines of {'it' if script is None else script.name}:\n"
        )
        # Not wrapped: these are lines to copy.
        terminal.stderr.print(plain_text(lines_to_change(facts)), soft_wrap=True)
    if facts.samples is None:
        terminal.print_message(f"\nWrite into {file} how many samples your data set has.")
    terminal.print_message(f"Next: scavenger plan {file}, then scavenger submit {file} --watch")


def find_script(directory: Path) -> Path | None:
    """Return the training script of a folder; None where it has none, or several that may be it."""
    for name in USUAL_SCRIPTS:
        if (directory / name).is_file():
            return directory / name
    scripts = sorted(directory.glob("*.py"))
    trainers = [each for each in scripts if "train" in each.stem] or scripts
    return trainers[0] if len(trainers) == 1 else None


def find_python(directory: Path) -> str:
    """Return the Python that runs the script: of the folder's environment, or that of the path."""
    own = next((name for name in OWN_PYTHONS if (directory / name).exists()), None)
    return own or ("python" if shutil.which("python") else "python3")


def read_script(text: str) -> ScriptFacts:
    r"""Read what a script tells; nothing where it is no Python.

    >>> read_script("import torch\nBATCH = 64\nfor epoch in range(5): train(BATCH)").epochs
    5
    """
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return ScriptFacts()
    constants = {name: value for node in nodes for name, value in named_numbers(node)}
    found: dict[str, int] = {}
    for node in nodes:
        for name, value in named_sizes(node, constants):
            found.setdefault(name, value)
    modules = frozenset(name for node in nodes for name in named_modules(node))
    names = (getattr(node, "id", None) or getattr(node, "attr", None) for node in nodes)
    uses_adam = any("Adam" in str(name) for name in names)
    return ScriptFacts(modules, uses_adam=uses_adam, **found)


def named_modules(node: ast.AST) -> Iterator[str]:
    """Yield the modules that a part of a script imports or names, with what it takes from them."""
    match node:
        case ast.Attribute():
            yield ast.unparse(node)
        case ast.Import(names=names):
            yield from (each.name for each in names)
        case ast.ImportFrom(module=str(module), names=names):
            yield from (f"{module}.{each.name}" for each in names)
        case _:
            pass


def named_numbers(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names to which an assignment gives a whole number."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int(value))):
            yield name, value
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            for target, given in zip(names, values, strict=False):
                yield from named_numbers(ast.Assign(targets=[target], value=given))
        case _:
            pass


def named_sizes(node: ast.AST, constants: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield batch, epochs and samples that a part of a script names."""
    sizes: list[tuple[str, ast.expr]] = []
    match node:
        case ast.Call(func=ast.Attribute(attr="batches"), args=[samples, batch, *_]):
            sizes = [("samples", samples), ("batch", batch)]
        case ast.For(
            target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[count])
        ) if "epoch" in name:
            sizes = [("epochs", count)]
        case ast.keyword(arg=str(name), value=value) if name in SIZE_NAMES:
            sizes = [(SIZE_NAMES[name], value)]
        case ast.Call(
            func=ast.Attribute(attr="add_argument"),
            args=[*_, ast.Constant(value=str(option))],
            keywords=keywords,
        ) if (name := option.lstrip("-").replace("-", "_")) in SIZE_NAMES:
            defaults = [each.value for each in keywords if each.arg == "default"]
            sizes = [(SIZE_NAMES[name], value) for value in defaults]
        case ast.Assign():
            named = [(name.lower(), number) for name, number in named_numbers(node)]
            sizes = [(SIZE_NAMES[n], ast.Constant(v)) for n, v in named if n in SIZE_NAMES]
        case _:
            pass
    for name, value in sizes:
        match value:
            case ast.Constant(value=int(number)) if number > 0:
                yield name, number
            case ast.Name(id=constant) if constants.get(constant, 0) > 0:
                yield name, constants[constant]


def write_document(*, folder: str, script: str, python: str, cores: int, facts: ScriptFacts) -> str:
    """Return a job document with comments, which can be submitted as it is.

    Args:
        folder: Name of the folder of the script.
        script: File name of the script.
        python: The program that runs it.
        cores: Cores of this computer, which hosts the workers unless a cloud does.
        facts: What the script tells.
    """
    batch, epochs = facts.batch or USUAL_BATCH, facts.epochs or USUAL_EPOCHS
    key = re.sub(r"[^A-Za-z0-9._-]+", "-", folder).strip("-.") or "job"
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(script).stem).strip("-.") or "train"
    name = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:63].strip("-") or "job"
    wrapper = "scavenger, agent, run, --, " if facts.starts_processes else ""
    workers = min(max(cores, 2), MOST_WORKERS)
    check = "" if facts.samples else "CHECK THIS: "
    told = "" if facts.batch is None else f", as in {script}"
    framework = "framework: tensorflow\n" if facts.is_tensorflow else ""
    rule, other = ("sqrt", "linear") if facts.uses_adam else ("linear", "sqrt")
    return f"""\
# All keys: docs/job-spec.md
name: {write_word(name)}
model:
  key: {key[:100]}/{stem[:99]}  # jobs with the same key share what was learnt
  dataset_size: {facts.samples or USUAL_SAMPLES}  # {check}samples in one epoch
{framework}target:
  epochs: {epochs}  # train as far as so many epochs lead with batch {batch}
  at_batch: {batch}  # the batch your learning rate was written for{told}
  # Or, in place of epochs, train until a metric is reached: job.log(accuracy=...)
  # metric: accuracy
  # goal: 0.9
  # max_epochs: {4 * epochs}  # give up here
objective: knee  # or cheapest, fastest
limits:
  max_cost: 5.00 USD  # never exceeded: the job ends there
  max_time: 12h
  workers: 1..{workers}  # each is a process on this computer, or a rented machine
  batch: [{batch}, {2 * batch}, {4 * batch}]  # samples of all workers together
lr_scaling: {rule}  # how the learning rate follows the batch; or none, {other}, adascale
price: 0.10 USD/h  # of one worker; leave this out where a cloud rents machines
run:
  command: [{wrapper}{write_word(python)}, {write_word(script)}]  # in the folder of this file
"""


def write_word(text: str) -> str:
    """Write a word for a list in YAML.

    >>> write_word("train.py"), write_word("my train.py"), write_word("on")
    ('train.py', '"my train.py"', '"on"')
    """
    is_plain = PLAIN_WORD.fullmatch(text) and text.lower() not in WORDS_OF_YAML
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def save_document(file: Path, document: str, *, is_forced: bool) -> None:
    """Write a job file.

    Raises:
        FileInTheWay: There is one, and it may not be replaced.
    """
    try:
        with file.open("w" if is_forced else "x", encoding="utf-8") as opened:
            opened.write(document)
    except FileExistsError:
        raise FileInTheWay(str(file)) from None


LINES_OF_TORCH = """\
+import worker_agent

-for epoch in range({epochs}):
-    for inputs, targets in DataLoader(data, batch_size={batch}, shuffle=True):
+with worker_agent.session() as job:
+    job.prepare(model, optimizer)
+    batches = job.batches(len(data), {batch}, epochs={epochs})
+    for inputs, targets in DataLoader(data, batch_sampler=batches):
         ...
         optimizer.step()
+        job.log(loss=loss)"""
LINES_OF_TENSORFLOW = """\
+import worker_agent

-@tf.function
+@tf.function(reduce_retracing=True)
 def step(inputs, targets):
     ...
     optimizer.apply_gradients(zip(gradients, model.trainable_variables))
     return loss

-for epoch in range({epochs}):
-    for inputs, targets in data.shuffle(1000).batch({batch}):
-        step(inputs, targets)
+with worker_agent.session() as job:
+    job.prepare(model, optimizer)
+    for indices in job.batches(len(inputs), {batch}, epochs={epochs}):
+        loss = step(inputs[indices], targets[indices])
+        job.log(loss=loss)"""
LINES_OF_TRANSFORMERS = """\
+import worker_agent
+from worker_agent.integrations.transformers import connect

+with worker_agent.session() as job:
     trainer = Trainer(...)
+    connect(trainer, job)
     trainer.train()"""
LINES_OF_LIGHTNING = """\
+import worker_agent
+from worker_agent.integrations.lightning import SessionCallback, session_loader

+with worker_agent.session() as job:
+    trainer = Trainer(max_epochs=1, devices=1, callbacks=[SessionCallback(job)])
+    trainer.fit(model, session_loader(job, loader, epochs={epochs}))"""


def lines_to_change(facts: ScriptFacts) -> str:
    """Return what to change in a script, as lines of a diff."""
    lines = LINES_OF_TORCH
    if facts.uses("transformers"):
        lines = LINES_OF_TRANSFORMERS
    elif facts.uses("lightning", "pytorch_lightning"):
        lines = LINES_OF_LIGHTNING
    elif facts.is_tensorflow:
        lines = LINES_OF_TENSORFLOW
    return lines.format(batch=facts.batch or USUAL_BATCH, epochs=facts.epochs or USUAL_EPOCHS)
