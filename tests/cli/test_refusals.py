"""Each refusal of a command that can be told from its words alone comes before torch is loaded, which takes seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = [
    *("--defense=batch_shufle", "--defense=none+batch_shufle", "--defense=batch_shuffle:kep=1", "--defense=@server"),
    *("--defense=batch_shuffle:keep=2", "--defense=batch_shuffle:keep=true", "--defense=batch_shuffle:keep=nan"),
    *("--defense=batch_shuffle:keep", "--defense=batch_shuffle:variant=final", "--defense=gaussian_noise:sigma=-1"),
    *("--defense=gaussian_noise:sigma=big", "--defense=masking:keep=2@server", "--defense=masking@middle"),
    *("--defense=gaussian_noise:sigma=1+masking:kep=.2", "--defense=mixup:group=0", "--defense=nopeek:weight=-1"),
    *("--defense=dp_cutmixsl:group=0", "--defense=laplace_noise:sigma=0", "--defense=blur:factor=0"),
    *("--defense=token_dropping:kept=0", "--defense=mixup:protocol=cutmixs"),
    *(
        "--attack=blackbox",
        "--attack=black_box:epoch=3",
        "--attack=black_box:epochs=-1",
        "--attack=black_box:epochs=1.5",
    ),
    *("--attack=black_box:decoder=x", "--attack=black_box:width=wide", "--attack=jigsaw:kicks=-1", "--attack=al"),
    *("--attack=label_leak:positive=-1", "--attack=member_inference:shadows=-1", "--attack=canaries:on=labels"),
    *("--attack=white_box:epochs=many", "--attack=fsha:learning_rate=0", "--attack=unsplit:epochs=0.5"),
    *("--dataset=digit", "--dataset=cifar", "--dataset=cifar10:batches=9", "--dataset=celeba:size=0"),
    *("--dataset=names:unit=letters", "--dataset=names:length=0", "--dataset=criteo:scale=no", "--dataset=names:row=3"),
    *("--auxiliary=fashion", "--auxiliary=digit", "--auxiliary=cifar10:batches=0"),
    *("--model=vit_micr", "--model=vit_micro:width=0", "--model=vit_micro:wide=3", "--model=resnet18:activation=elu"),
    *("--model=lstm:kind=gated", "--model=vit_micro:grid=many", "--model=table_mlp:depth=0"),
    *("--protocol=ps", "--protocol=psl:client=3", "--protocol=psl:clients=0", "--protocol=sl:gradient=all"),
    *("--partition=dirichlet:alfa=1", "--partition=dirichlet:alpha=0", "--partition=even"),
    *("--training=batch_sise=3", "--training=batch_size=0", "--training=optimizer=lion", "--training=keep=worst"),
    *("--training=learning_rate=-1", "--training=precision=float8", "--training=batch_size"),
    *("--budget=smal", "--budget=small:epoch=3", "--budget=small:epochs=-1", "--budget=small:victims=0"),
    *("--device=gpu", "--device=cuda:x", "--threads=0", "--threads=two", "--seed=-1", "--seed=0-4", "--delta=0"),
    *("--delta=2", "--victims=both", "--queries=none", "--queries=rounds=-1", "--tune=trials=0", "--tune=share=2"),
    *("--features=lpips:big", "--features=classifier:", "--gate=sim<3", "--gate=ssim", "--cell-seconds=0"),
    *("--cell-memory=much", "--trust=mine", "--workers=0", "--workers=two", "--preset=dp_cutmix", "--nothing"),
    *("--config=bad.toml", "--config=key.toml", "--config=value.toml", "--config=absent.toml", "--config=trust.toml"),
    *("--grid=key.toml", "--out=notes.txt", "--out=notes.txt/run", "--out=full"),
    *("--training=keep=best", "--metric=ssim", "--trust=mine"),
    *("--recorded=absent", "--recorded=full", "--recorded=broken", "--recorded=newer", "--recorded=changed"),
]
TOGETHER = [
    *("audit --defense=none --gate=ssim<=0.4", "audit --defense=none:protocol=sl --gate=ssim<=0.4"),
    *("audit --recorded=full --defense=none", "audit --recorded=full --dataset=digits"),
]
OTHERS = [
    *("report absent", "report full", "verify absent", "compare absent absent", "list defense"),
    *("new defens mine", "new defense my-part", "frontier --vary sigma", "audti"),
    *("work absent --sbatch partition=gpu", "papers nobody"),
]
COMMANDS = [
    *(["audit", option] for option in AUDIT),
    *(command.split() for command in (*OTHERS, *TOGETHER)),
]
RUN = """
import sys
from time import process_time
sys.modules['torch'] = None  # to import it is an error
from privkit.cli.app import app
for command in {commands!r}:
    began, said = process_time(), ''
    try:
        app(command, standalone_mode=False)
    except Exception as error:
        said = str(error) or type(error).__name__
    if not said or 'torch' in said:
        print('not refused' if not said else 'torch', command, said)
    {more}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """What the commands name."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    (tmp_path / "notes.txt").write_text("mine")
    for name, text in {
        "bad": "defense = [",
        "key": "defence = 'none'",
        "value": "defense = ['batch_shuffle:keep=2']",
        "trust": "trust = ['mine']",
    }.items():
        (tmp_path / f"{name}.toml").write_text(text)
    for name, text in {"broken": "{", "newer": '{"schema_version": 99}', "changed": '{"schema_version": 2}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "recording.json").write_text(text)
    return tmp_path


@pytest.mark.slow
def test_no_refusal_of_words_costs_an_import_of_torch(files: Path) -> None:
    code = RUN.format(commands=COMMANDS, more="")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=files)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
