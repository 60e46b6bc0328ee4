"""Numbered checkpoints: the last n are kept, whatever a save has left behind."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

import pslib
from pslib import checkpoint
from pslib.checkpoint import list_checkpoints, newest, next_place, prune
from pslib.data.synthetic.generator import Generated, generated_schema
from pslib.errors import CheckpointError, ConfigurationError
from rec_models.deepfm import DeepFM
from tests.checkpoint.test_checkpoint_start import CONFIG, generated_data, one_trainer, trainer_on
from tests.support.checkpoints import GOLDEN, content_of
from tests.support.clusters import cluster_of

data = pytest.fixture(generated_data, scope="module")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_coordinator_knows_the_checkpoint_itself_that_was_saved_or_loaded_last(
    data: Generated, tmp_path: Path
) -> None:
    """A server that comes back without what it knew begins there, and a folder of several is none."""
    with cluster_of(2) as running:
        trainer, registry = trainer_on(running), running.embedded.coordinator.session.registry
        for _ in range(2):
            path = trainer.save(tmp_path, keep_last=1)
            assert (registry.saved, registry.basis) == (path, [{"path": path}])
        trainer.load(tmp_path)
        assert [one["path"] for one in registry.basis] == [path]
        trainer.save(tmp_path / "one")
        assert registry.saved == str(tmp_path / "one")


def test_the_last_n_are_kept_and_nothing_else_is_touched(data: Generated, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-000001").mkdir()
    (tmp_path / "checkpoint-000001" / "mine.txt").write_text("a user's file, no checkpoint")
    shutil.copytree(GOLDEN, tmp_path / "best")
    with one_trainer(2) as trainer:
        paths = [trainer.save(tmp_path, keep_last=2)]
        for _ in range(3):
            trainer.fit(data.test_path)
            paths.append(trainer.save(tmp_path, keep_last=2))
        assert [Path(path).name for path in paths] == [f"checkpoint-{n:06d}" for n in (2, 3, 4, 5)]
        assert names_in(tmp_path) == ["best", "checkpoint-000001", "checkpoint-000004", "checkpoint-000005"]
        assert names_in(tmp_path / "checkpoint-000001") == ["mine.txt"]
        states = {Path(one.path).name: one.state for one in list_checkpoints(str(tmp_path))}
        assert set(states.values()) == {"complete"}
        trainer.fit(data.test_path)
        trainer.load(tmp_path)  # the newest
        trainer.save(tmp_path / "again")
    assert content_of(tmp_path / "again") == content_of(Path(paths[-1]))


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("dies_after", range(6))
def test_a_crash_never_leaves_fewer_than_were_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int, dies_after: int
) -> None:
    """The new one is there before an old one goes, and an old one loses its manifest first."""
    for number in range(1, 5):
        shutil.copytree(GOLDEN, tmp_path / f"checkpoint-{number:06d}")
    real, calls = checkpoint.folders.fs.LocalFileSystem.delete_file, []

    def dying(self: object, path: str) -> None:
        if len(calls) == dies_after:
            raise KeyboardInterrupt
        calls.append(path)
        real(self, path)

    class Dying(checkpoint.folders.fs.LocalFileSystem):
        delete_file = dying

    monkeypatch.setattr("pyarrow.fs.LocalFileSystem", Dying)
    with contextlib.suppress(KeyboardInterrupt):
        prune(str(tmp_path), keep)
    monkeypatch.undo()
    found = list_checkpoints(str(tmp_path))
    complete = [Path(one.path).name for one in found if one.state == "complete"]
    assert len(complete) >= keep
    assert "checkpoint-000004" in complete
    assert not [one for one in found if one.state == "damaged"]


def test_what_a_dead_save_has_left_is_neither_the_newest_nor_removed(data: Generated, tmp_path: Path) -> None:
    with one_trainer() as trainer:
        whole = trainer.save(tmp_path, keep_last=1)
        dead = tmp_path / "checkpoint-000002"
        shutil.copytree(whole, dead)
        (dead / "manifest.json").unlink()
        assert newest(str(tmp_path)) == whole
        trainer.load(tmp_path)
        assert Path(trainer.save(tmp_path, keep_last=1)).name == "checkpoint-000003"
    assert names_in(tmp_path) == ["checkpoint-000002", "checkpoint-000003"]


def test_numbered_checkpoints_do_not_go_into_a_checkpoint(tmp_path: Path) -> None:
    """A load from that folder would get the old one for ever."""
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="it is one itself; with keep_last give another folder"):
        next_place(str(tmp_path))
    (tmp_path / "manifest.json").unlink()
    assert next_place(str(tmp_path)) == str(tmp_path / "checkpoint-000001")


@pytest.mark.parametrize("wrong", [-1, 1.5, "2"])
def test_a_wrong_number_to_keep_is_refused(tmp_path: Path, wrong: object) -> None:
    expected = pytest.raises(ConfigurationError, match="keep_last: expected a whole number")
    with cluster_of() as running, expected:
        trainer_on(running).save(tmp_path, keep_last=wrong)  # type: ignore[arg-type]
    assert names_in(tmp_path) == []


def test_two_trainers_agree_on_the_checkpoint_that_was_saved(data: Generated, tmp_path: Path) -> None:
    def script(cluster: pslib.Cluster) -> str:
        model = DeepFM(generated_schema(CONFIG), dim=2, hidden=(3,))
        trainer = pslib.Trainer(model, cluster, batch_rows=32, progress=False)
        trainer.fit(data.test_path)
        trainer.save(tmp_path, keep_last=1)
        return trainer.save(tmp_path, keep_last=1)

    with cluster_of(2, trainers=2) as running:
        paths = running.run(script, script)
    assert paths == [str(tmp_path / "checkpoint-000002")] * 2


def test_of_several_trainers_the_one_that_saves_removes_older_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    monkeypatch.setattr(
        "pslib.trainer.checkpoints.save_load.prune", lambda folder, keep_last: removed.append(folder)
    )
    with cluster_of(2, trainers=2) as running:

        def script(cluster: pslib.Cluster) -> str:
            model = DeepFM(generated_schema(CONFIG), dim=2, hidden=(3,))
            return Path(pslib.Trainer(model, cluster, progress=False).save(tmp_path, keep_last=1)).name

        assert running.run(script, script) == ["checkpoint-000001"] * 2
    assert removed == [str(tmp_path)]
